"""The rollout record: what crosses from the rollout engine to the trainer, validated once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from looprl.errors import UserError

StateKind = Literal["penultimate", "endpoint", "gate"]
KVPolicy = Literal["terminal", "per_loop"]
FinishReason = Literal["stop", "length"]


class RolloutMismatchError(UserError):
    """A record that does not belong to the update it is offered to."""


@dataclass(frozen=True)
class RolloutRecord:
    """One sampled completion with the recurrent states it was sampled from.

    prompt_ids: P token ids. completion_ids: G token ids, the stop token included. logprobs: [G], of each sampled
    token under the distribution it was drawn from. states: [P + G - 1, d], for every token that was fed (the
    last sampled one never was); state_kind says which: `penultimate` enters the last loop, `endpoint` leaves it, and
    `gate` is none, but the exit gate's logits after every loop in the first `num_loops` columns, for evaluation.
    policy_version: the optimizer step whose weights sampled it. initial_state_seed: what z_0 was drawn from, None
    for the model's own z_0. Raises RolloutMismatchError on lengths that do not fit together.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: Tensor
    states: Tensor
    state_kind: StateKind
    num_loops: int
    kv_policy: KVPolicy
    policy_version: int
    finish_reason: FinishReason
    initial_state_seed: int | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RolloutMismatchError("a rollout record needs at least one prompt token")
        if self.logprobs.shape != (len(self.completion_ids),):
            raise RolloutMismatchError(
                f"{len(self.completion_ids)} completion tokens but log-probs of shape {tuple(self.logprobs.shape)}"
            )
        fed = len(self.prompt_ids) + max(len(self.completion_ids), 1) - 1
        if self.states.ndim != 2 or self.states.shape[0] != fed:
            raise RolloutMismatchError(
                f"states have shape {tuple(self.states.shape)}, expected [{fed}, d]: one per prompt token "
                f"({len(self.prompt_ids)}) and per completion token ({len(self.completion_ids)}) but the last"
            )
        for name, value, choices in (
            ("state_kind", self.state_kind, get_args(StateKind)),
            ("kv_policy", self.kv_policy, get_args(KVPolicy)),
            ("finish_reason", self.finish_reason, get_args(FinishReason)),
        ):
            if value not in choices:
                raise RolloutMismatchError(f"{name} is {value!r}; choose from {', '.join(choices)}")

    def check(
        self,
        *,
        state_kind: StateKind,
        num_loops: int,
        kv_policy: KVPolicy,
        policy_version: int,
        hidden_size: int,
        initial_state_seed: int | None = None,
    ) -> None:
        """Raise RolloutMismatchError unless this record is what the trainer is about to replay."""
        expected = {
            "state_kind": state_kind,
            "num_loops": num_loops,
            "kv_policy": kv_policy,
            "policy_version": policy_version,
            "initial_state_seed": initial_state_seed,
        }
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise RolloutMismatchError(
                    f"rollout record has {name} = {getattr(self, name)!r}, the trainer replays with {value!r}"
                )
        if self.states.shape[1] != hidden_size:
            raise RolloutMismatchError(
                f"rollout record has states {self.states.shape[1]} wide, the model's are {hidden_size}"
            )


def stack_states(records: Sequence[RolloutRecord], prompt_length: int, completion_length: int) -> Tensor:
    """States of left-padded prompts and right-padded completions: [B, P + C, d], zero where nothing was fed.

    RolloutMismatchError on a record that does not fit into P prompt and C completion tokens.
    """
    width = records[0].states.shape[1]
    stacked = torch.zeros(len(records), prompt_length + completion_length, width, dtype=records[0].states.dtype)
    for row, record in zip(stacked, records, strict=True):
        if len(record.prompt_ids) > prompt_length or len(record.completion_ids) > completion_length:
            raise RolloutMismatchError(
                f"a record of {len(record.prompt_ids)} prompt and {len(record.completion_ids)} completion tokens "
                f"does not fit into a batch padded to {prompt_length} and {completion_length}"
            )
        first = prompt_length - len(record.prompt_ids)
        row[first : first + len(record.states)] = record.states
    return stacked
