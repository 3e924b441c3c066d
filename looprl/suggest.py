"""The "did you mean" part of an error message."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the candidate closest to `name`, or "" when none is close."""
    matches = difflib.get_close_matches(name, list(candidates), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
