"""rewards/mbppplus.py: canonical solutions score one, and every way of being almost right zero."""

import json
import time
from pathlib import Path

import pytest

from looprl.data.loading import load_task_dataset
from looprl.rewards import load_reward
from looprl.sandbox.inside.values import decode

FILE = Path(__file__).parents[1] / "data" / "mbppplus_100.jsonl"
RAW = [json.loads(line) for line in FILE.read_text().splitlines()]
CHANGES = """
def _off_by_one(value):
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float, complex)): return value + 1
    if isinstance(value, str): return value + "x"
    if isinstance(value, (list, tuple)): return type(value)([*value, "x"])
    if isinstance(value, set): return value | {"x"}
    if isinstance(value, dict): return {**value, "x": 1}
    return 1

def _without_last(value):
    if isinstance(value, (str, list, tuple)): return value[:-1]
    if isinstance(value, set): return set(list(value)[:-1])
    if isinstance(value, dict): return dict(list(value.items())[:-1])
    return None
"""
MUTATIONS = {
    "returns None": "return None",
    "off by one": "return _off_by_one(_right(*arguments))",
    "drops the last element": "return _without_last(_right(*arguments))",
    "raises": "raise ValueError('no')",
    "prints instead of returning": "print(_right(*arguments))",
}


@pytest.fixture(scope="module")
def tasks():
    return load_task_dataset(str(FILE), "train")


@pytest.fixture(scope="module")
def reward():
    return load_reward("rewards/mbppplus.py:all_tests_pass")


@pytest.fixture(scope="module")
def score(reward, tasks):
    def score(completions, tests=None):
        return reward(prompts=["p"] * len(completions), completions=completions, tests=tests or tasks["tests"][:])

    return score


def mutated(row, body):
    name = row["entry_point"]
    return f"{row['canonical_solution']}\n{CHANGES}\n_right = {name}\ndef {name}(*arguments):\n    {body}\n"


def test_canonical_solutions_with_all_inputs_score_one_in_time(score):
    start = time.monotonic()
    assert score([row["canonical_solution"] for row in RAW]) == [1.0] * 100
    assert time.monotonic() - start < 30  # the values that they are compared with are computed here too
    start = time.monotonic()
    assert score([f"So:\n```python\n{row['canonical_solution']}\n```\nDone." for row in RAW]) == [1.0] * 100
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_score_zero_on_every_task(score, name):
    assert score([mutated(row, MUTATIONS[name]) for row in RAW]) == [0.0] * 100


def test_solutions_of_the_base_inputs_only_score_zero(score, tasks):
    completions = []
    for row, tests in zip(RAW, tasks["tests"], strict=True):
        known = [tuple(decode(form)) for form in json.loads(tests)["inputs"][: len(row["base_input"])]]
        completions.append(mutated(row, f"return _right(*arguments) if arguments in {known!r} else None"))
    assert score(completions) == [0.0] * 100


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("def double(x): return 2 * x", 1),
        ("```python\ndef double(x): return 2 * x\n```", 1),
        ("```\ndef double(x): return 3 * x\n```\nNo:\n```py\ndef double(x): return 2 * x\n```\nThat is all.", 1),
        ("```python\ndef double(x): return 2 * x\n```\nor\n```python\ndef double(x): return 3 * x\n```", 0),
        ("```python\ndef double(x): return 2 * x", 1),
        ("Sure! def double(x): return 2 * x", 0),
        ("def twice(x): return 2 * x", 0),
        ("double = 5", 0),
        ("", 0),
        ("def double(x): return 2 * x\nif __name__ == '__main__': raise SystemExit(input())", 1),
        ([{"role": "assistant", "content": "```python\ndef double(x): return 2 * x\n```"}], 1),
    ],
)
def test_code_is_the_last_fenced_block_or_the_completion(score, completion, expected):
    tests = task("def double(x): return x + x", [[2], [-7], [0.1]])
    assert score([completion], [tests]) == [expected]


def test_task_whose_canonical_solution_fails_cannot_be_judged(score):
    broken = [
        task("def double(x): return x.y", [[2]]),
        task("def double(x): return iter([x])", [[2]]),
        task("def double(x", [[2]]),
    ]
    tests = [*broken, task("def double(x): return x + x", [[2]])]
    assert score(["def double(x): return 2 * x"] * 4, tests) == [None, None, None, 1.0]


def test_tolerance_of_the_task_is_honoured(score):
    third = "def double(x): return round(x / 3, 3)"
    assert score([third], [task("def double(x): return x / 3", [[1]])]) == [0.0]
    assert score([third], [task("def double(x): return x / 3", [[1]], atol=1e-3)]) == [1.0]


def task(reference, inputs, atol=0):
    forms = [["list", arguments] for arguments in inputs]
    row = {"entry_point": "double", "reference": reference, "inputs": forms, "expected": None, "atol": atol}
    return json.dumps(row)
