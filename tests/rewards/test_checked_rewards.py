"""A checked reward lets only finite numbers and counted Nones through."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from looprl.rewards import RewardError, checked


def returning(value):
    def outcome(prompts, completions, **kwargs):
        return value

    return checked(outcome)


def call(reward, count=2, **kwargs):
    return reward(prompts=["p"] * count, completions=["c"] * count, completion_ids=[[1]] * count, **kwargs)


def test_numbers_and_nones_pass_as_floats_and_nones():
    scores = call(returning([1, True, 0.5, None, np.float32(0.25), np.int64(3), Fraction(1, 4)]), 7)
    assert scores == [1.0, 1.0, 0.5, None, 0.25, 3.0, 0.25]
    assert all(score is None or type(score) is float for score in scores)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "returned 1 rewards for 2 completions"),
        ([1.0, 0.0, 0.0], "returned 3 rewards for 2 completions"),
        ([], "returned 0 rewards for 2 completions"),
        ([1.0, math.nan], "returned nan for completion 1; return None"),
        ([np.float64("nan"), 1.0], "returned nan for completion 0; return None"),
        ([-math.inf, 1.0], "returned -inf for completion 0"),
        ([1.0, "1.0"], re.escape("returned '1.0' (str) for completion 1, not a number")),
        ([[1.0], 0.0], re.escape("returned [1.0] (list) for completion 0, not a number")),
        ([torch.tensor(1.0), 0.0], re.escape("(Tensor) for completion 0, not a number")),
        ((1.0, 0.0), "returned tuple; it must return a list"),
        (np.zeros(2), "returned ndarray; it must return a list"),
        (None, "returned NoneType; it must return a list"),
        (1.0, "returned float; it must return a list"),
    ],
)
def test_anything_else_is_an_error_that_names_function_and_file(returned, message):
    with pytest.raises(RewardError, match=message) as error:
        call(returning(returned))
    assert f"reward outcome in {__file__}" in str(error.value)


def test_a_reward_that_raises_is_an_error_that_keeps_the_cause_and_the_place():
    def outcome(prompts, completions, **kwargs):
        return [kwargs["tests"] for _ in completions]

    with pytest.raises(RewardError, match=r"reward outcome in .* raised KeyError: 'tests'") as error:
        call(checked(outcome))
    assert isinstance(error.value.__cause__, KeyError)
    assert f"{__file__}, line {outcome.__code__.co_firstlineno + 1}" in str(error.value)


def test_an_interrupt_is_not_taken_for_a_failing_reward():
    def outcome(prompts, completions, **kwargs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(checked(outcome))


def test_a_reward_sees_all_columns_and_keeps_its_name_and_is_wrapped_once():
    seen = {}

    def outcome(prompts, completions, answer, **kwargs):
        seen.update(kwargs, answer=answer)
        return [0.0] * len(completions)

    reward = checked(outcome)
    assert reward.__name__ == "outcome" and checked(reward) is reward
    call(reward, answer=["1", "2"], trainer_state="state", extra=[3, 4])
    assert seen == {
        "completion_ids": [[1], [1]], "answer": ["1", "2"], "trainer_state": "state", "extra": [3, 4],
    }  # fmt: skip
