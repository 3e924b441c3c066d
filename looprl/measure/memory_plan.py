"""What a training run keeps in memory, from counts and widths: formulas only, nothing is measured or loaded.

Everything is in bytes, of one process; what lies on its device and what in the host's memory apart.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

FP32 = 4
MOMENTS = 2  # of Adam


class Held(NamedTuple):
    """One thing that a process keeps."""

    name: str
    device: int
    host: int = 0


@dataclass(frozen=True)
class Layout:
    """How training is spread. parameters: of the model, a tied one once. itemsize: bytes of a weight that computes.

    zero_stage: of DeepSpeed's ZeRO (Rajbhandari et al., 2020, arXiv:1910.02054), 0 without it. fp32_gradients: ZeRO
    keeps its shards of them in fp32 unless it is told of bf16, whatever the weights are.
    """

    parameters: int
    itemsize: int
    zero_stage: int = 0
    processes: int = 1
    offload_optimizer: bool = False
    fp32_gradients: bool = False

    @property
    def shard(self) -> int:
        """Parameters that a process has a share of its own of."""
        return math.ceil(self.parameters / self.processes) if self.zero_stage else self.parameters


def training_state(layout: Layout) -> list[Held]:
    """Weights, gradients, AdamW's moments, and the weights that it updates where they are not the model's own.

    ZeRO shards the optimizer's part from stage 1 on, the gradients from 2 and the weights from 3; it updates a copy in
    fp32 whatever the model computes in. Offloaded, that copy comes with gradients in fp32. Without ZeRO moments and
    gradients have the weights' precision and there is no copy.
    """
    whole, shard = layout.parameters * layout.itemsize, layout.shard * layout.itemsize
    stage = layout.zero_stage
    if not stage:
        return [Held("weights", whole), Held("gradients", whole), Held("Adam's moments", MOMENTS * whole)]
    moments, copy = MOMENTS * FP32 * layout.shard, FP32 * layout.shard
    optimizer = [Held("Adam's moments", moments), Held("master weights", copy)]
    if layout.offload_optimizer:
        offloaded = [Held(name, 0, size) for name, size, _ in optimizer]
        optimizer = [*offloaded, Held("their gradients in fp32", 0, copy)]
    gathered = FP32 * layout.shard if layout.fp32_gradients else shard
    return [
        Held("weights", shard if stage == 3 else whole),
        Held("gradients", whole if stage == 1 else gathered),
        *optimizer,
    ]


@dataclass(frozen=True)
class Rollouts:
    """What a process samples at a time. completions: of one rollout; window: tokens of a prompt and its completion.

    kv_per_token, state_per_token: bytes. replayed: whether training starts from those states. engine_parameters: of the
    engine's model, which has a tied head of its own.
    ranks: how many processes share an engine; each has its part of the heads, and all of the states.
    """

    completions: int
    window: int
    kv_per_token: int
    state_per_token: int
    replayed: bool
    engine_parameters: int
    itemsize: int
    ranks: int = 1


def rollout_memory(rollouts: Rollouts) -> list[Held]:
    """The engine's weights, its cache for every sequence at full length, and the states of a rollout's records.

    The records lie in the host's memory; for a replay their states are also on the device, padded to the window.
    """
    tokens = rollouts.completions * rollouts.window
    states = tokens * rollouts.state_per_token
    return [
        Held("rollout engine: weights", math.ceil(rollouts.engine_parameters / rollouts.ranks) * rollouts.itemsize),
        Held("rollout engine: keys and values", tokens * rollouts.kv_per_token),
        Held("rollout engine: states", rollouts.ranks * states),
        Held("states of the rollout", states if rollouts.replayed else 0, states),
    ]
