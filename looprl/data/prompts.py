"""Prompts, texts or lists of chat messages: as one text to show, and as token ids the way TRL's trainer reads them."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase


def prompt_text(prompt: Any) -> str:
    """A prompt as one text: a string as it is, the contents of chat messages below each other."""
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)


def prompt_token_ids(prompts: Sequence[Any], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of each prompt: a string as it is, a list of chat messages through the chat template."""
    if prompts and isinstance(prompts[0], list):
        return tokenizer.apply_chat_template(
            list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
    return tokenizer(list(prompts), verbose=False)["input_ids"]
