"""The record refuses what does not fit together, and says what differs."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from looprl.errors import UserError
from looprl.rollout.record import RolloutMismatchError, RolloutRecord, stack_states

MakeRecord = Callable[..., RolloutRecord]
REPLAY: dict[str, Any] = dict(
    state_kind="penultimate", num_loops=6, kv_policy="terminal", policy_version=3, hidden_size=8
)


def test_a_record_has_one_state_for_every_token_that_was_fed(make_record: MakeRecord) -> None:
    record = make_record()
    assert record.states.shape == (3 + 2 - 1, 8)
    record.check(**REPLAY)


def test_a_completion_of_one_token_adds_no_state(make_record: MakeRecord) -> None:
    record = make_record(completion_ids=(8,), logprobs=torch.tensor([-0.5]), states=torch.ones(3, 8))
    record.check(**REPLAY)


def test_an_empty_completion_has_the_prompts_states(make_record: MakeRecord) -> None:
    record = make_record(completion_ids=(), logprobs=torch.empty(0), states=torch.ones(3, 8), finish_reason="length")
    record.check(**REPLAY)


def test_a_record_cannot_be_changed(make_record: MakeRecord) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_record().policy_version = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(prompt_ids=()), ["at least one prompt token"]),
        (dict(logprobs=torch.zeros(3)), ["2 completion tokens", "(3,)"]),
        (dict(logprobs=torch.zeros(1)), ["2 completion tokens", "(1,)"]),
        (dict(logprobs=torch.zeros(2, 1)), ["2 completion tokens", "(2, 1)"]),
        (dict(completion_ids=(8, 9, 10)), ["3 completion tokens", "(2,)"]),
        (dict(states=torch.zeros(5, 8)), ["(5, 8)", "[4, d]", "prompt token (3)", "completion token (2)"]),
        (dict(states=torch.zeros(3, 8)), ["(3, 8)", "[4, d]"]),
        (dict(states=torch.zeros(4)), ["(4,)", "[4, d]"]),
        (dict(states=torch.zeros(1, 4, 8)), ["(1, 4, 8)", "[4, d]"]),
        (dict(prompt_ids=(5, 6)), ["(4, 8)", "[3, d]"]),
        (dict(state_kind="final"), ["state_kind", "'final'", "penultimate, endpoint, gate"]),
        (dict(kv_policy="shared"), ["kv_policy", "'shared'", "terminal, per_loop"]),
        (dict(finish_reason="abort"), ["finish_reason", "'abort'", "stop, length"]),
        (dict(finish_reason=None), ["finish_reason", "None"]),
    ],
)
def test_a_record_that_does_not_fit_together_is_refused(
    make_record: MakeRecord, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RolloutMismatchError) as error:
        make_record(**changes)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("replay", "words"),
    [
        (dict(state_kind="endpoint"), ["state_kind", "'penultimate'", "'endpoint'"]),
        (dict(num_loops=5), ["num_loops", "6", "5"]),
        (dict(kv_policy="per_loop"), ["kv_policy", "'terminal'", "'per_loop'"]),
        (dict(policy_version=4), ["policy_version", "3", "4"]),
        (dict(policy_version=2), ["policy_version", "3", "2"]),
        (dict(hidden_size=16), ["8 wide", "16"]),
        (dict(initial_state_seed=12), ["initial_state_seed", "None", "12"]),
    ],
)
def test_a_record_is_refused_by_an_update_that_it_does_not_belong_to(
    make_record: MakeRecord, replay: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RolloutMismatchError) as error:
        make_record().check(**(REPLAY | replay))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("expected", [None, 12])
def test_a_record_drawn_from_another_seed_is_refused(make_record: MakeRecord, expected: int | None) -> None:
    record = make_record(initial_state_seed=11)
    record.check(**REPLAY, initial_state_seed=11)
    with pytest.raises(RolloutMismatchError, match=f"initial_state_seed = 11.* with {expected}"):
        record.check(**REPLAY, initial_state_seed=expected)


def test_a_mismatch_is_an_error_that_the_command_prints_without_a_traceback() -> None:
    assert issubclass(RolloutMismatchError, UserError)


def test_stacked_states_lie_where_the_padded_tokens_are(make_record: MakeRecord) -> None:
    long = make_record()
    short = make_record(prompt_ids=(5,), completion_ids=(8,), logprobs=torch.zeros(1), states=torch.full((1, 8), -7.0))
    wide = make_record(
        prompt_ids=(5, 6), completion_ids=(1, 2, 3, 4), logprobs=torch.zeros(4), states=torch.full((5, 8), -9.0)
    )
    stacked = stack_states([long, short, wide], prompt_length=3, completion_length=4)
    assert stacked.shape == (3, 7, 8) and stacked.dtype == long.states.dtype
    # Row by row: left padding, the prompt's tokens, the completion's tokens but the last, nothing.
    expected = torch.zeros(3, 7, 8)
    expected[0, 0:4] = long.states
    expected[1, 2:3] = short.states
    expected[2, 1:6] = wide.states
    assert torch.equal(stacked, expected)


def test_stacked_states_keep_the_records_dtype_and_leave_the_records_alone(make_record: MakeRecord) -> None:
    record = make_record(states=torch.ones(4, 8, dtype=torch.bfloat16))
    stacked = stack_states([record], 5, 5)
    assert stacked.dtype == torch.bfloat16
    stacked.zero_()
    assert record.states.min() == 1


@pytest.mark.parametrize("lengths", [(2, 4), (3, 1)])
def test_states_that_do_not_fit_the_padded_batch_are_refused(make_record: MakeRecord, lengths: tuple[int, int]) -> None:
    with pytest.raises(RolloutMismatchError, match=f"3 prompt and 2 completion .* {lengths[0]} and {lengths[1]}"):
        stack_states([make_record()], *lengths)
