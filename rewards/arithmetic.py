"""Reward for the built-in arithmetic task: the exact answer in the exact format, or nothing."""

import re
from typing import Any

from looprl.rewards import completion_text

MARK = "####"


def accuracy(prompts: list[Any], completions: list[Any], answer: list[Any], **kwargs: Any) -> list[float | None]:
    """Give 1.0 to a completion with exactly one `####` and only the gold number's digits behind it, else 0.0.

    The gold number is what stands behind `####` in `answer`, or all of `answer`; where that is no
    natural number the completion cannot be judged (None).
    """
    return [_score(completion_text(completion), gold) for completion, gold in zip(completions, answer, strict=True)]


def _score(completion: str, answer: Any) -> float | None:
    gold = str(answer).rpartition(MARK)[2].strip()
    if not re.fullmatch("[0-9]+", gold):
        return None
    return float(completion.partition(MARK)[2].strip() == gold)


def final_answer(completion: str) -> str | None:
    """Return what stands behind the first `####`, None where nothing does."""
    return completion.partition(MARK)[2].strip() or None
