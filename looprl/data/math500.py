r"""MATH-500: competition problems, `problem` and `answer`, a number or a LaTeX formula; for evaluation only.

It is the transfer task of a model trained on GSM8K. From the hub (`HuggingFaceH4/MATH-500`, whose one split is `test`)
or a local file of the same columns.
"""

from collections.abc import Mapping
from typing import Any

HUB_NAME = "HuggingFaceH4/MATH-500"
COLUMNS = ("problem", "answer")

INSTRUCTION = r"Reason step by step, then write the final answer within \boxed{}."


def plain(row: Mapping[str, Any]) -> str:
    """A text that a base model continues with the solution."""
    return f"{INSTRUCTION}\n\nProblem: {row['problem'].strip()}\nSolution:"


def chat(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages of one turn, for models with a chat template."""
    return [{"role": "user", "content": f"{row['problem'].strip()}\n\n{INSTRUCTION}"}]


TEMPLATES = {"plain": plain, "chat": chat}
