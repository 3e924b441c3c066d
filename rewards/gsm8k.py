"""Reward for GSM8K: the last number of the completion is compared with the gold answer."""

import re
from decimal import Decimal
from typing import Any

from looprl.rewards import completion_text

# A minus sign counts only where it cannot be a subtraction: not right behind a number, a word or a bracket.
NUMBER = re.compile(
    r"(?P<before>(?<![\w)\].])-)?\$?(?P<after>(?<=\$)-)?"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<!\w)\.[0-9]+)"
)


def accuracy(prompts: list[Any], completions: list[Any], answer: list[Any], **kwargs: Any) -> list[float | None]:
    """Give 1.0 to a completion whose last number equals the gold number, else 0.0.

    Thousands separators, dollar signs, decimals and a leading minus are understood: `$1,080.00` equals
    1080. The gold number is what stands behind `####` in `answer`, or all of `answer`; where that is
    not one number the completion cannot be judged (None).
    """
    return [_score(completion_text(completion), gold) for completion, gold in zip(completions, answer, strict=True)]


def _score(completion: str, answer: Any) -> float | None:
    gold = NUMBER.fullmatch(str(answer).rpartition("####")[2].strip())
    if gold is None:
        return None
    numbers = list(NUMBER.finditer(completion))
    return float(bool(numbers) and _value(numbers[-1]) == _value(gold))


def _value(number: re.Match[str]) -> Decimal:
    sign = "-" if number["before"] or number["after"] else ""
    return Decimal(sign + number["digits"].replace(",", ""))
