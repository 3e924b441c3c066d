"""Reward for MATH-500: the final answer of the completion equals the gold formula, or it does not."""

from typing import Any

from looprl.answers import final_answer, solution_scores
from looprl.rewards import completion_text

__all__ = ["accuracy", "final_answer"]  # the answers that majority@k votes on


def accuracy(prompts: list[Any], completions: list[Any], answer: list[Any], **kwargs: Any) -> list[float | None]:
    """Give 1.0 to a completion whose final answer equals `answer`, a number or a LaTeX formula, else 0.0.

    Formulas are equal where math-verify says so. A gold answer that it cannot read is None.
    """
    return solution_scores([completion_text(completion) for completion in completions], [str(gold) for gold in answer])
