"""How many tokens a prompt and its completion may have together."""

from datasets import Dataset
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from looprl.data.checks import check_prompt_lengths
from looprl.data.prompts import prompt_token_ids
from looprl.training.config import LoopedGRPOConfig

Sampled = list[tuple[str, Dataset, int]]  # name, prompts and completion tokens of each dataset


def window_of(
    config: PretrainedConfig, args: LoopedGRPOConfig, tokenizer: PreTrainedTokenizerBase, sampled: Sampled
) -> int:
    """The window as set, or what the longest prompt and its completion need. DatasetError on a longer prompt."""
    lengths = [
        (name, [len(ids) for ids in prompt_token_ids(rows["prompt"][:], tokenizer)], completion)
        for name, rows, completion in sampled
    ]
    needed = max(max(prompts) + completion for _, prompts, completion in lengths)
    window = args.vllm_max_model_length or min(needed, config.max_position_embeddings)
    for name, prompts, completion in lengths:
        check_prompt_lengths(prompts, window - completion, name)
    return window
