"""How completions are drawn, and which prompts can be."""

from collections.abc import Sequence
from dataclasses import dataclass

from looprl.errors import UserError

MIN_TEMPERATURE = 0.01  # vLLM raises a lower one to this


class RolloutError(UserError):
    """The engine cannot do what was asked of it."""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn: until one of `stop_token_ids` or `max_tokens` tokens.

    Log-probs are of the distribution after `temperature`; nothing else alters it. Temperature 0 is greedy, for
    evaluation, with the log-probs of temperature 1. RolloutError on no tokens and on a temperature that vLLM
    would change.
    """

    max_tokens: int
    stop_token_ids: tuple[int, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RolloutError(f"max_tokens is {self.max_tokens}: a completion has at least one token")
        if self.temperature != 0 and not self.temperature >= MIN_TEMPERATURE:
            raise RolloutError(
                f"temperature is {self.temperature}: choose {MIN_TEMPERATURE} or more, or 0 for greedy decoding"
            )


def check_prompts(prompts: Sequence[Sequence[int]], sampling: Sampling, window: int, vocab_size: int) -> None:
    """RolloutError on a prompt of token ids that leaves no room for its completion, or that the model does not know."""
    room = window - sampling.max_tokens
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= room:
            raise RolloutError(
                f"prompt {index} has {len(prompt)} tokens; with max_completion_length = {sampling.max_tokens} "
                f"the window of {window} leaves room for 1 to {room}"
            )
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise RolloutError(
                f"prompt {index} has token ids from {min(prompt)} to {max(prompt)}, but the model knows 0 to "
                f"{vocab_size - 1}: is the tokenizer the model's own?"
            )
