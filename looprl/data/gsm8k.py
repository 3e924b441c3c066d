"""GSM8K: word problems with worked answers, `question` and `answer`, which ends in `#### number`.

From the hub (`openai/gsm8k`) or a local file of the same columns. `templates` are the prompts that `task_options:
{template: ...}` chooses from; without one the prompt is the question and a line break.
"""

from collections.abc import Mapping
from typing import Any

HUB_NAME = "openai/gsm8k"
HUB_OPTIONS = {"name": "main"}
COLUMNS = ("question", "answer")

INSTRUCTION = "Reason step by step, then write the final answer as a number on a line of its own, after ####."


def plain(row: Mapping[str, Any]) -> str:
    """A text that a base model continues with the worked answer."""
    return f"{INSTRUCTION}\n\nQuestion: {row['question'].strip()}\nAnswer:"


def chat(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages of one turn, for models with a chat template."""
    return [{"role": "user", "content": f"{row['question'].strip()}\n\n{INSTRUCTION}"}]


TEMPLATES = {"plain": plain, "chat": chat}
