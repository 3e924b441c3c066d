"""How many tokens prompt and completion may have together."""

from collections.abc import Sequence

from datasets import Dataset
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from looprl.data.checks import check_prompt_lengths
from looprl.data.prompts import prompt_token_ids


def window(
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    sampled: Sequence[tuple[str, Dataset, int]],
    wanted: int | None = None,
) -> int:
    """The window as `wanted`, or as the longest prompt with its completion needs and the model has.

    sampled: name, prompts and completion tokens of each dataset. UserError on a prompt that does not fit.
    """
    lengths = [
        (name, [len(ids) for ids in prompt_token_ids(rows["prompt"][:], tokenizer)], completion)
        for name, rows, completion in sampled
    ]
    needed = max(max(prompts) + completion for _, prompts, completion in lengths)
    tokens = wanted or min(needed, config.max_position_embeddings)
    for name, prompts, completion in lengths:
        check_prompt_lengths(prompts, tokens - completion, name)
    return tokens
