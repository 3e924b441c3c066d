"""Reward for GSM8K: the final answer of the completion is the gold number, or it is not."""

from typing import Any

from looprl.answers import final_answer, number_scores
from looprl.rewards import completion_text

__all__ = ["accuracy", "final_answer"]  # the answers that majority@k votes on


def accuracy(prompts: list[Any], completions: list[Any], answer: list[Any], **kwargs: Any) -> list[float | None]:
    """Give 1.0 to a completion whose final answer equals the gold number, else 0.0.

    `looprl/answers/extraction.py` says where the final answer stands and `looprl/answers/numbers.py` how numbers may be
    written. The gold number is what stands behind `####` in `answer`, or all of `answer`; where that is not one number
    the completion cannot be judged (None).
    """
    golds = [str(gold).rpartition("####")[2] for gold in answer]
    return number_scores([completion_text(completion) for completion in completions], golds)
