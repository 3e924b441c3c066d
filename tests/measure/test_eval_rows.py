"""Rows of an evaluation, worked by hand."""

import pytest

from looprl.measure.eval_rows import problem_rows, summary_row
from looprl.measure.pass_at_k import interval_over_problems

K = 4


def samples(problem, rewards, answers=None, tokens=(1, 2, 3, 4), truncated=(False, False, False, True)):
    rows = []
    for sample, reward in enumerate(rewards):
        answered = {} if answers is None else {"final_answer": answers[sample]}
        shared = {"problem": problem, "sample": sample, "prompt": f"prompt {problem}", "completion": "text"}
        rows.append(shared | answered | {"reward": reward, "tokens": tokens[sample], "truncated": truncated[sample]})
    return rows


@pytest.fixture
def problems():
    drawn = [
        *samples(0, [1.0, 0.0, 0.5, 1.0], ["5", "7", "6", "5"]),
        *samples(1, [None, 0.0, 1.0, 0.0], ["5", "2", "5", None]),
        *samples(2, [None] * 4, ["1"] * 4),
        *samples(3, [0.0] * 4, [None] * 4),
    ]
    return problem_rows(drawn, K, task="sums", num_loops=6)


def test_only_a_reward_of_one_passes_and_unjudged_completions_are_left_out(problems):
    assert [row["judged"] for row in problems] == [4, 3, 0, 4]
    assert [row["passed"] for row in problems] == [2, 1, 0, 0]
    assert [row["avg"] for row in problems] == [0.5, pytest.approx(1 / 3), None, 0.0]
    # pass@2 of 2 in 4: 1 - 1/6; of 1 in 3: 2/3; pass@4 of 3 judged ones cannot be known
    assert problems[0]["pass_at"] == {1: 0.5, 2: pytest.approx(5 / 6), 4: 1.0}
    assert problems[1]["pass_at"] == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3), 4: None}
    assert problems[2]["pass_at"] == {1: None, 2: None, 4: None}


def test_the_votes_are_of_the_judged_completions_that_answer(problems):
    assert [row["majority"] for row in problems] == [1.0, 0.5, None, 0.0]
    assert [row["votes"] for row in problems] == [{"5": 2, "7": 1, "6": 1}, {"2": 1, "5": 1}, {}, {}]


def test_the_summary_is_over_the_problems_that_could_be_judged(problems):
    row = summary_row(problems, K)
    assert (row["task"], row["num_loops"], row["k"], row["n"]) == ("sums", 6, K, 3)
    assert row["avg_at_k"] == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert row["ci95"] == pytest.approx(interval_over_problems([1 / 2, 1 / 3, 0], 11))
    assert row["pass_at_k"] == pytest.approx(1 / 2)  # of the two problems with four judged completions
    assert row["pass_at"] == {1: row["avg_at_k"], 2: pytest.approx((5 / 6 + 2 / 3 + 0) / 3), 4: row["pass_at_k"]}
    assert row["majority_at_k"] == pytest.approx(1.5 / 3)
    assert row["unjudged"] == 5
    assert row["tokens"] == 2.5 and row["truncated_share"] == 1 / 4


def test_without_final_answers_there_is_no_majority():
    problems = problem_rows(samples(0, [1.0] * 4) + samples(1, [0.0] * 4), K, task="sums", num_loops=1)
    row = summary_row(problems, K)
    assert row["majority_at_k"] is None and row["majority_at_k_ci95"] is None and row["avg_at_k"] == 0.5
    assert "votes" not in problems[0]


def test_where_nothing_can_be_judged_nothing_is_claimed():
    row = summary_row(problem_rows(samples(0, [None] * 4, ["1"] * 4), K, task="sums", num_loops=1), K)
    keys = ("avg_at_k", "ci95", "pass_at_k", "majority_at_k")
    assert [row[key] for key in keys] == [None] * 4 and (row["n"], row["unjudged"]) == (0, 4)


@pytest.mark.parametrize(
    ("k", "measured"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_pass_at_is_measured_at_powers_of_two_and_k(k, measured):
    drawn = samples(0, [1.0] * k, tokens=[1] * k, truncated=[False] * k)
    assert list(summary_row(problem_rows(drawn, k, task="sums", num_loops=1), k)["pass_at"]) == measured
