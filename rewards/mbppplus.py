"""Reward for MBPP+: the function does what the canonical solution does, on every base and plus input.

The code runs in the sandbox (`looprl/sandbox/`), which sees inputs and never an expected value; what it returned is
compared here.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from looprl.rewards import completion_text
from looprl.sandbox import Program, Run, run_programs
from looprl.sandbox.comparison import same, same_elements

FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)

# As EvalPlus judges them: the order of the elements is not part of the task, or only whether something is found is.
ANY_ORDER = {
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array",
    "find_dissimilar", "Diff",
}  # fmt: skip
FOUND_OR_NOT = {"check_str", "text_match_three", "text_starta_endb"}

# The canonical solutions' values by test: every step meets the same tasks again.
_known_values: dict[str, list[Any]] = {}


def all_tests_pass(prompts: list[Any], completions: list[Any], tests: list[Any], **kwargs: Any) -> list[float | None]:
    """Give 1.0 to a completion whose function returns the expected value for every input, else 0.0.

    The code is the last fenced block of the completion, or all of it. A task whose canonical solution fails, or whose
    values cannot be compared, cannot be judged (None).
    """
    expected = expected_values(tests)
    judged = [index for index, test in enumerate(tests) if test in expected]
    programs = [_program(tests[index], code_of(completion_text(completions[index]))) for index in judged]
    scores: list[float | None] = [None] * len(completions)
    for index, run in zip(judged, run_programs(programs), strict=True):
        scores[index] = float(_passes(run, json.loads(tests[index]), expected[tests[index]]))
    return scores


def code_of(completion: str) -> str:
    """Return the last fenced block (one that is cut off counts up to the end), or the completion where none is."""
    blocks = FENCED.findall(completion)
    return blocks[-1] if blocks else completion


def expected_values(tests: Sequence[str]) -> dict[str, list[Any]]:
    """Return the encoded values that each test expects, from its row or else from its canonical solution.

    A test without them is left out: its canonical solution failed, or returned what cannot be compared.
    """
    for test in set(tests) - set(_known_values):
        if (values := json.loads(test)["expected"]) is not None:
            _known_values[test] = values
    unknown = [test for test in dict.fromkeys(tests) if test not in _known_values]
    runs = run_programs([_program(test, json.loads(test)["reference"]) for test in unknown])
    for test, run in zip(unknown, runs, strict=True):
        if run.calls is not None and None not in run.calls:
            values = [value for (value,) in run.calls]
            if all(_comparison(json.loads(test))(value, value) for value in values):
                _known_values[test] = values
    return {test: _known_values[test] for test in tests if test in _known_values}


def _program(test: str, code: str) -> Program:
    task = json.loads(test)
    return Program(code, task["entry_point"], tuple(task["inputs"]))


def _passes(run: Run, task: dict[str, Any], expected: list[Any]) -> bool:
    if run.calls is None or len(run.calls) != len(expected):
        return False
    is_right = _comparison(task)
    return all(call is not None and is_right(call[0], value) for call, value in zip(run.calls, expected, strict=True))


def _comparison(task: dict[str, Any]) -> Callable[[Any, Any], bool]:
    if task["entry_point"] in ANY_ORDER:
        return same_elements
    if task["entry_point"] in FOUND_OR_NOT:
        return lambda returned, expected: _found(returned) == _found(expected)
    return lambda returned, expected: same(returned, expected, task["atol"])


def _found(value: Any) -> bool:
    return value if isinstance(value, bool) else value is not None
