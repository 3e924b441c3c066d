"""Checks made before training starts: prompts fit the window, and evaluation prompts are not trained on."""

from collections.abc import Sequence

from datasets import Dataset

from looprl.data.errors import DatasetError
from looprl.data.prompts import prompt_text


def check_prompt_lengths(lengths: Sequence[int], max_prompt_tokens: int, dataset: str) -> None:
    """Check that every prompt has at most `max_prompt_tokens` tokens, counting those the tokenizer adds.

    `dataset`: what the message calls the dataset, such as `training`.

    Raises:
        DatasetError: names the first row that is too long, its length, the window and the remedies; or says that no
            prompt could fit.
    """
    if max_prompt_tokens < 1:
        raise DatasetError(
            f"the completions of the {dataset} prompts leave no room for a prompt ({max_prompt_tokens} tokens): lower "
            "max_completion_length, or enlarge the window (vllm_max_model_length, as far as the model goes)"
        )
    too_long = [row for row, length in enumerate(lengths) if length > max_prompt_tokens]
    if too_long:
        row = too_long[0]
        raise DatasetError(
            f"the {dataset} prompt of row {row} (counting from 0) has {lengths[row]} tokens, but the window for "
            f"prompts is {max_prompt_tokens} tokens; {len(too_long)} of {len(lengths)} prompts are too "
            f"long and the longest has {max(lengths)}. Enlarge the window, shorten the completions, or "
            "take the long rows out of the dataset."
        )


def check_disjoint(train: Dataset, evaluation: Dataset, name: str = "evaluation") -> None:
    """Check that no evaluation prompt is also a training prompt.

    `name`: what the message calls the evaluation prompts.

    Raises:
        DatasetError: says how many are and names the first pair of rows.
    """
    training_rows = {prompt_text(prompt): row for row, prompt in reversed(list(enumerate(train["prompt"])))}
    prompts = [prompt_text(prompt) for prompt in evaluation["prompt"]]
    shared = [(row, prompt) for row, prompt in enumerate(prompts) if prompt in training_rows]
    if shared:
        row, prompt = shared[0]
        raise DatasetError(
            f"{len(shared)} of {len(evaluation)} {name} prompts are also trained on; the first is "
            f"{name} row {row}, training row {training_rows[prompt]} (counting from 0): {prompt[:80]!r}. "
            "Evaluate on another split or file, or on parts that do not overlap, like train[:90%] and "
            "train[90%:]."
        )
