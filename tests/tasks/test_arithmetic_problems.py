"""The arithmetic task: well-formed problems, disjoint splits, demonstrations of the quality asked for."""

import re

import pytest

from looprl.data.arithmetic import ArithmeticTask, demonstrations, is_held_out, problems
from looprl.data.errors import DatasetError

TASK = ArithmeticTask()
QUESTION = re.compile(
    r"(?P<name>[A-Z][a-z]+) has (?P<start>\d+) (?P<thing>[a-z]+)\. "
    r"(?P<events>((?P=name) [a-z]+ \d+\. )+)How many (?P=thing) does (?P=name) have\?"
)
STEP = re.compile(r"(\d+) ([+-]) (\d+) = (\d+)")
UP = {"finds", "buys", "wins"}


def told(question):
    """The start and the signed changes, read back from the question's words."""
    match = QUESTION.fullmatch(question)
    assert match, question
    events = re.findall(r"[A-Z][a-z]+ ([a-z]+) (\d+)\.", match["events"])
    return int(match["start"]), [int(amount) if verb in UP else -int(amount) for verb, amount in events]


def worked(answer):
    """The steps as (value, change, result) and the final number, read back from the answer."""
    *lines, last = answer.split("\n")
    steps = []
    for line in lines:
        value, sign, amount, result = STEP.fullmatch(line).groups()
        steps.append((int(value), int(sign + amount), int(result)))
    return steps, int(re.fullmatch(r"#### (\d+)", last)[1])


@pytest.mark.parametrize(
    "task", [TASK, ArithmeticTask(num_steps=1), ArithmeticTask(4, max_start=50, max_operand=20, max_value=60)]
)
def test_gold_answers_follow_from_the_question_and_stay_in_range(task):
    for problem in problems(task, "train", 300, seed=1):
        start, changes = told(problem["question"])
        steps, final = worked(problem["answer"])
        values = [start, *(start + sum(changes[: n + 1]) for n in range(len(changes)))]
        assert len(changes) == task.num_steps
        assert steps == list(zip(values, changes, values[1:], strict=False))
        assert final == values[-1]
        assert 2 <= start <= task.max_start
        assert all(0 <= value <= task.max_value for value in values)
        assert all(1 <= abs(change) <= task.max_operand for change in changes)


def test_every_difficulty_knob_is_used_to_its_limit():
    stories = [told(problem["question"]) for problem in problems(TASK, "train", 3000, seed=0)]
    assert {start for start, _ in stories} == set(range(2, 21))
    assert {change for _, changes in stories for change in changes} == set(range(-9, 10)) - {0}
    assert {start + sum(changes) for start, changes in stories} >= set(range(30)) - {29}


def test_train_and_test_problems_never_overlap():
    small = ArithmeticTask(num_steps=1, max_start=5, max_operand=3, max_value=8)
    train = {p["question"] for seed in range(3) for p in problems(small, "train", 1000, seed)}
    test = {p["question"] for seed in range(3, 6) for p in problems(small, "test", 120, seed)}
    assert train and test and not train & test
    assert not any(map(is_held_out, train)) and all(map(is_held_out, test))


def test_about_one_problem_in_eight_is_held_out_and_always_the_same_ones():
    questions = [f"question {number}" for number in range(8000)]
    held_out = [question for question in questions if is_held_out(question)]
    assert 850 < len(held_out) < 1150
    assert held_out[:4] == ["question 9", "question 18", "question 25", "question 26"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_problems_of_a_split_are_unique(split):
    questions = [problem["question"] for problem in problems(TASK, split, 2000, seed=0)]
    assert len(set(questions)) == len(questions) == 2000


def test_the_seed_alone_decides_what_is_drawn():
    assert problems(TASK, "train", 50, seed=3) == problems(TASK, "train", 50, seed=3)
    assert problems(TASK, "train", 50, seed=3) != problems(TASK, "train", 50, seed=4)
    assert problems(TASK, "train", 50, seed=3) == problems(TASK, "train", 80, seed=3)[:50]
    assert demonstrations(TASK, 50, seed=3) == demonstrations(TASK, 50, seed=3)
    assert demonstrations(TASK, 50, seed=3) != demonstrations(TASK, 50, seed=4)


def test_too_few_distinct_problems_is_an_error_that_counts_them():
    tiny = ArithmeticTask(num_steps=1, max_start=2, max_operand=1, max_value=2)
    everything = sum(len(problems(tiny, split, count, 0)) for split, count in (("train", 60), ("test", 12)))
    assert everything == 6 * 4 * 3  # names, things, verbs
    with pytest.raises(DatasetError, match=r"13 distinct test problems .* only 12 were found .* ask for fewer"):
        problems(tiny, "test", 13, 0)


def test_demonstrations_never_show_a_held_out_question():
    assert not any(is_held_out(row["question"]) for row in demonstrations(TASK, 3000, seed=0))


def test_demonstrations_have_the_quality_asked_for():
    rows = demonstrations(TASK, 4000, seed=0)
    skipped = slips = steps_written = correct = 0
    for row in rows:
        start, changes = told(row["question"])
        steps, final = worked(row["answer"])
        skipped += len(steps) == len(changes) - 1
        assert [change for _, change, _ in steps] == changes[: len(steps)]
        assert [value for value, _, _ in steps] == [start, *(result for _, _, result in steps)][: len(steps)]
        assert final == steps[-1][2]
        for value, change, result in steps:
            honest = min(max(value + change, 0), 99)
            assert 0 <= result <= 99 and abs(result - honest) <= 3
            slips += result != honest
        steps_written += len(steps)
        correct += final == start + sum(changes)
    assert 0.47 < skipped / len(rows) < 0.53
    assert 0.04 < slips / steps_written < 0.06
    assert 0.40 < correct / len(rows) < 0.50


def test_demonstrations_without_flaws_are_gold_and_always_flawed_ones_slip_in_every_step():
    for row in demonstrations(TASK, 200, seed=0, skip_last_step=0, wrong_step=0):
        start, changes = told(row["question"])
        assert worked(row["answer"])[1] == start + sum(changes)
    for row in demonstrations(TASK, 200, seed=0, skip_last_step=1, wrong_step=1):
        steps, _ = worked(row["answer"])
        assert len(steps) == 1
        assert all(result != min(max(value + change, 0), 99) for value, change, result in steps)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_steps": 0}, "num_steps must be at least 1, not 0"),
        ({"max_value": 100}, "max_value must be between 2 and 99"),
        ({"max_start": 31}, r"max_start must be between 2 and 30 \(max_value\), not 31"),
        ({"max_start": 1}, "max_start must be between 2 and 30"),
        ({"max_operand": 0}, "max_operand must be between 1 and 30"),
        ({"num_steps": 2.0}, r"num_steps must be an integer, not 2\.0"),
        ({"max_start": True}, "max_start must be an integer, not True"),
    ],
)
def test_an_impossible_difficulty_is_refused(knobs, message):
    with pytest.raises(DatasetError, match=message):
        ArithmeticTask(**knobs)


def test_a_request_that_cannot_be_met_is_refused():
    with pytest.raises(DatasetError, match="no split 'validation'; its splits are train and test"):
        problems(TASK, "validation", 1, 0)
    with pytest.raises(DatasetError, match="cannot be negative"):
        problems(TASK, "train", -1, 0)
    with pytest.raises(DatasetError, match=r"wrong_step is a probability, so between 0 and 1, not 1\.5"):
        demonstrations(TASK, 1, 0, wrong_step=1.5)
