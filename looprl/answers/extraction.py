r"""Where the final answer of a completion stands.

The last of these marks decides:

- `####`: the rest of its line;
- `\boxed{...}` or `\fbox{...}`: what its braces hold. A box that is never closed is a cut-off answer, which is none;
- a statement, `the answer is ...`, `final answer: ...`, `answer = ...`: up to the end of the sentence.

What stands behind the last `=` there is the answer. Behind `####` and in a box it must be one number, with its unit or
not, or one formula; of a statement the first number counts. A completion without a mark is a text that ends with its
answer: its last number, or its last formula, counts.
"""

import re
from dataclasses import dataclass

_HASHES = re.compile(r"####+(?P<answer>[^\n]*)")
_BOX = re.compile(r"\\f?box(?:ed)?\s*(?=\{)")
_STATEMENT = re.compile(
    r"\banswer\b(?:\s+(?!is\b)[\w'\"()-]+){0,8}?[*_\s]*(?:\bis\b|:|=)[*_\s:]*(?P<answer>[^\n]*?)(?=\.(?:\s|$)|\n|$)",
    re.IGNORECASE,
)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """What a completion gives as its answer; `exact` where it is marked by `####` or a box, not by prose."""

    text: str
    exact: bool


def find_answer(completion: str) -> Answer | None:
    """Return the text behind the last mark, None where there is no mark, and an empty text for a cut-off box."""
    last = [found[-1] for found in (list(mark.finditer(completion)) for mark in (_HASHES, _BOX, _STATEMENT)) if found]
    if not last:
        return None
    mark = max(last, key=re.Match.start)
    text = _braced(completion, mark.end()) if mark.re is _BOX else mark["answer"].strip()
    return Answer(text, exact=mark.re is not _STATEMENT)


def last_formula(text: str) -> str | None:
    r"""Return the last `$...$`, `$$...$$`, `\(...\)` or `\[...\]` of a text without its borders."""
    formulas = list(_FORMULA.finditer(text))
    return next(filter(None, formulas[-1].groups())).strip() if formulas else None


def _braced(text: str, start: int) -> str:
    depth = 0
    for place in range(start, len(text)):
        if text[place - 1 : place] == "\\":
            continue
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place].strip()
    return ""
