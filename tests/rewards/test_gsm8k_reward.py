r"""rewards/gsm8k.py: every form of the right number scores one, every other number zero."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from looprl.rewards import load_reward

DATA = Path(__file__).parents[1] / "data"
GOLDS = [
    json.loads(line)["answer"]
    for name in ("gsm8k_train_512", "gsm8k_test_128")
    for line in (DATA / f"{name}.jsonl").read_text().splitlines()
]
FORMS = ["{0}", "#### {0}", r"\boxed{{{0}}}", "${0}", "{1:,}", "So in the end she has {0} of them left."]


@pytest.fixture(scope="module")
def score():
    reward = load_reward("rewards/gsm8k.py:accuracy")

    def score(completions, answers):
        answers = [answers] * len(completions) if isinstance(answers, str) else answers
        return reward(prompts=["p"] * len(completions), completions=completions, answer=answers)

    return score


@pytest.mark.parametrize("form", FORMS)
def test_every_gold_answer_scores_one_in_every_form_and_its_neighbours_zero(score, form):
    assert len(GOLDS) == 640
    numbers = [gold.rpartition("#### ")[2] for gold in GOLDS]
    values = [Decimal(number.replace(",", "")) for number in numbers]
    assert score([form.format(*pair) for pair in zip(numbers, values, strict=True)], GOLDS) == [1.0] * 640
    for step in (1, -1):
        changed = [form.format(value + step, value + step) for value in values]
        assert score(changed, GOLDS) == [0.0] * 640


def test_worked_answers_score_one_and_those_of_other_problems_by_their_number(score):
    assert score(GOLDS, GOLDS) == [1.0] * 640
    shifted = GOLDS[1:] + GOLDS[:1]
    same = [float(a.split("####")[1] == b.split("####")[1]) for a, b in zip(shifted, GOLDS, strict=True)]
    assert score(shifted, GOLDS) == same and sum(same) < 40


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        ("2 2/3", "2", 0), ("2 1/2", "2.5", 1), (r"\boxed{3+5}", "8", 1), (r"\boxed{3+6}", "8", 0), ("50%", "50", 1),
        ("50%", "0.5", 0), ("50%", "50%", 1), ("0.5", "50%", 1), ("5", "50%", 0), (r"\boxed{12", "12", 0),
        (r"\boxed{1} or \boxed{2}", "2", 1), (r"\boxed{2} or \boxed{1}", "2", 0), ("72, in total", "72", 1),
        ("**72**", "72", 1), ("72 apples", "72", 1), ("$70,000", "70000", 1), ("-3", "3", 0), ("-3", "-3", 1),
        ("#### 1,234", "1234", 1), (",", "5", 0), (r"\boxed{}", "5", 0), ("", "5", 0), ("no number", "5", 0),
        ("5", "", None), ("5", "####", None), ("5", "#### five", None), ("5", "#### 5 dollars", None),
        ("5", "#### 5 6", None), ("5", "#### 5", 1), ("5", "5 + 6 = 11 #### 5", 1),
        (r"\boxed{\$70{,}000}", "70000", 1), (r"\boxed{72\text{ apples}}", "72", 1),
        (r"\boxed{2\frac{1}{2}}", "2.5", 1),
        (r"\boxed{72 or 73}", "72", 0), (r"\boxed{72, 73}", "72", 0), (r"\boxed{8 9}", "72", 0), ("#### 1 2 3", "3", 0),
        (r"\boxed{8\cdot 9}", "72", 1), (r"\boxed{x=18}", "18", 1), ("#### 5 + 13 = 18", "18", 1),
        ("#### 18 of 20", "18", 0), ("#### she has 18 left", "18", 1), ("The answer is 18. 5 were lost.", "18", 1),
        ("The answer is 18 apples in 3 boxes.", "18", 1), ("The answer is 3 * 6 = 18 apples.", "18", 1),
        ("The answer is 3 or 18.", "18", 0), ("The answer is none of 18", "17", 0),
        ("18. The answer is unclear.", "18", 0),
        ("18 or 19", "18", 0), ("1.8", "18", 0), ("1,8", "18", 0), ("180", "18", 0), ("١٨", "18", 0),
        ("no.5", "5", 1), ("0.50", ".5", 1), ("9" * 5000, "9" * 5000, 1), ("9" * 5000, "9" * 4999 + "8", 0),
    ],
)  # fmt: skip
def test_table_of_answers(score, completion, gold, expected):
    assert score([completion], gold) == [expected]


def test_unreadable_gold_is_none_beside_judged_ones(score):
    assert score(["#### 18"] * 3, ["", "#### 18", "eighteen"]) == [None, 1.0, None]
