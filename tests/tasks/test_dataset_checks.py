"""Checks before training: prompts fit the window, evaluation prompts are not trained on."""

import pytest
from datasets import Dataset

from looprl.data.checks import check_disjoint, check_prompt_lengths
from looprl.data.errors import DatasetError
from looprl.data.loading import load_task_dataset
from looprl.data.prompts import prompt_token_ids
from looprl.data.tokenizer import build_tokenizer


def prompts(*texts):
    return Dataset.from_dict({"prompt": list(texts)})


def test_a_prompt_may_fill_the_window_but_not_exceed_it():
    texts = ["1", "12 + 3 = ", "1 + 2 + 3 = ", "1 + 2 + 3 + 4 = "]  # 2, 5, 7, 9 tokens with <bos>
    lengths = [len(ids) for ids in prompt_token_ids(texts, build_tokenizer())]
    check_prompt_lengths(lengths, 9, "training")
    with pytest.raises(DatasetError) as error:
        check_prompt_lengths(lengths, 6, "training")
    for part in (
        "the training prompt of row 2",
        "has 7 tokens",
        "is 6 tokens",
        "2 of 4 prompts",
        "longest has 9",
        "Enlarge the window",
    ):
        assert part in str(error.value)


def test_an_evaluation_prompt_that_is_trained_on_is_found():
    train = prompts("a", "b", "c", "b")
    check_disjoint(train, prompts("d", "A", "b "))
    with pytest.raises(DatasetError) as error:
        check_disjoint(train, prompts("x", "b", "c"))
    for part in ("2 of 3 evaluation prompts", "evaluation row 1, training row 1", "'b'"):
        assert part in str(error.value)


def test_the_splits_of_the_built_in_task_are_disjoint():
    train, test = (load_task_dataset("arithmetic", split) for split in ("train", "test"))
    check_disjoint(train, test)
    with pytest.raises(DatasetError, match="64 of 64 evaluation prompts"):
        check_disjoint(train, load_task_dataset("arithmetic", "train", size=64))


def test_completions_that_leave_no_room_for_any_prompt_are_what_is_said_to_be_wrong():
    with pytest.raises(DatasetError, match=r"leave no room for a prompt \(-3 tokens\): lower max_completion_length"):
        check_prompt_lengths([4, 5], -3, "evaluation")
