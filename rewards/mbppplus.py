"""Reward for MBPP+: the function does what the canonical solution does, on every base and plus input.

The code runs in the sandbox (`looprl/sandbox/`), which sees inputs and never an expected value; what it returned is
compared here.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from looprl.rewards import completion_text
from looprl.sandbox import Limits, Program, Run, run_programs
from looprl.sandbox.comparison import same, same_elements

REFERENCE_LIMITS = Limits(seconds=60.0)  # these end, however busy the machine is
FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)

# As EvalPlus judges them: the order of the elements is not part of the task, or only whether something is found is.
ANY_ORDER = {
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array",
    "find_dissimilar", "Diff",
}  # fmt: skip
FOUND_OR_NOT = {"check_str", "text_match_three", "text_starta_endb"}

# The encoded values that each test expects: every step meets the same tasks again.
_expected: dict[str, list[Any]] = {}


def all_tests_pass(prompts: list[Any], completions: list[Any], tests: list[Any], **kwargs: Any) -> list[float | None]:
    """Give 1.0 to a completion whose function returns the expected value for every input, else 0.0.

    The code is the last fenced block of the completion, or all of it. A task whose canonical solution fails, or whose
    values cannot be compared, cannot be judged (None).
    """
    tasks = {test: json.loads(test) for test in tests}
    _expected.update({test: task["expected"] for test, task in tasks.items() if task["expected"] is not None})
    unknown = [test for test in tasks if test not in _expected]
    references = [_program(tasks[test], tasks[test]["reference"]) for test in unknown]
    programs = [
        _program(tasks[test], code_of(completion_text(completion)))
        for test, completion in zip(tests, completions, strict=True)
    ]
    for test, run in zip(unknown, run_programs(references, REFERENCE_LIMITS), strict=True):
        if (values := _comparable_values(run, tasks[test])) is not None:
            _expected[test] = values
    judged = zip(tests, run_programs(programs), strict=True)
    return [_score(run, tasks[test], _expected[test]) if test in _expected else None for test, run in judged]


def code_of(completion: str) -> str:
    """Return the last fenced block (one that is cut off counts up to the end), or the completion where none is."""
    blocks = FENCED.findall(completion)
    return blocks[-1] if blocks else completion


def _program(task: dict[str, Any], code: str) -> Program:
    return Program(code, task["entry_point"], tuple(task["inputs"]))


def _comparable_values(run: Run, task: dict[str, Any]) -> list[Any] | None:
    """What the canonical solution returned; None where it failed, or returned what does not even equal itself."""
    if run.calls is None or None in run.calls:
        return None
    values = [value for (value,) in run.calls]
    return values if all(map(_comparison(task), values, values)) else None


def _score(run: Run, task: dict[str, Any], expected: list[Any]) -> float:
    if run.calls is None or len(run.calls) != len(expected):
        return 0.0
    is_right = _comparison(task)
    return float(
        all(call is not None and is_right(call[0], value) for call, value in zip(run.calls, expected, strict=True))
    )


def _comparison(task: dict[str, Any]) -> Callable[[Any, Any], bool]:
    if task["entry_point"] in ANY_ORDER:
        return same_elements
    if task["entry_point"] in FOUND_OR_NOT:
        return lambda returned, expected: _found(returned) == _found(expected)
    return lambda returned, expected: same(returned, expected, task["atol"])


def _found(value: Any) -> bool:
    return value if isinstance(value, bool) else value is not None
