"""Whether a returned value is the expected one, both in their encoded form (`inside/values.py`).

Equality is Python's: 1, 1.0 and True are equal, a list and a tuple are not. Floats, and all numbers where `atol` is
given, may be off by `atol` plus a relative 1e-7, as in EvalPlus. Sets and dictionaries are only built where their size
is the expected one, so that no returned value can make the comparison expensive.
"""

import math
from typing import Any

from looprl.sandbox.inside.values import decode

RELATIVE = 1e-7
FLOAT_ATOL = 1e-6  # for floats where the task gives no tolerance
_UNORDERED = ("set", "frozenset")


def same(returned: Any, expected: Any, atol: float = 0.0) -> bool:
    """Compare two encoded values. A malformed one, and one that is no plain value, equals nothing."""
    try:
        return _same(returned, expected, atol)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return False


def same_elements(returned: Any, expected: Any) -> bool:
    """Compare two encoded collections as sets: neither order nor repetition counts."""
    try:
        if len(returned[1]) > 100 + 10 * len(expected[1]):
            return False
        return {decode(item) for item in returned[1]} == {decode(item) for item in expected[1]}
    except (ValueError, TypeError, LookupError):
        return False


def _same(returned: Any, expected: Any, atol: float) -> bool:
    kind = expected[0] if isinstance(expected, list) else None
    if kind in ("list", "tuple"):
        return (
            returned[0] == kind
            and len(returned[1]) == len(expected[1])
            and all(_same(*pair, atol) for pair in zip(returned[1], expected[1], strict=True))
        )
    if kind in _UNORDERED:
        fits = returned[0] in _UNORDERED and len(returned[1]) == len(expected[1])
        return fits and decode(returned) == decode(expected)
    if kind == "dict":
        if returned[0] != "dict" or len(returned[1]) != len(expected[1]):
            return False
        values = {decode(key): value for key, value in returned[1]}
        return len(values) == len(returned[1]) and all(
            decode(key) in values and _same(values[decode(key)], value, atol) for key, value in expected[1]
        )
    return _same_scalar(decode(returned), decode(expected), atol)


def _same_scalar(returned: Any, expected: Any, atol: float) -> bool:
    if isinstance(returned, list | tuple | dict | set | frozenset):
        return False
    if returned == expected:
        return True
    if not all(isinstance(value, int | float | complex) for value in (returned, expected)):
        return False
    tolerance = atol or (FLOAT_ATOL if isinstance(expected, float | complex) else 0.0)
    if tolerance == 0.0:
        return False
    if _is_nan(returned) or _is_nan(expected):
        return _is_nan(returned) and _is_nan(expected)
    return math.isfinite(abs(expected)) and abs(returned - expected) <= tolerance + RELATIVE * abs(expected)


def _is_nan(value: complex) -> bool:
    return value != value
