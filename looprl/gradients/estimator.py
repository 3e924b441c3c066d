"""Gradient estimators: where the state comes from, how many loops are recorded, how many Neumann steps.

| preset              | state from                                              | recorded | Neumann steps |
|---------------------|---------------------------------------------------------|----------|---------------|
| `reuse`             | the rollout's record                                    | 1        | K             |
| `recompute`         | R - 1 (penultimate) or R (endpoint) gradient-free loops | 1        | K             |
| `truncated`         | R - b gradient-free loops                               | b        | 0             |
| `full`              | z_0                                                     | R        | 0             |
| `full_checkpointed` | z_0, each loop checkpointed                             | R        | 0             |
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from looprl.gradients.neumann import replay
from looprl.models.contract import Core, LoopContext, run_loops

StateFrom = Literal["rollout", "trainer"]
ReplayFrom = Literal["penultimate", "endpoint"]
Preset = Literal["reuse", "recompute", "truncated", "full", "full_checkpointed"]
PRESETS: tuple[str, ...] = get_args(Preset)


@dataclass(frozen=True)
class Estimator:
    """One gradient estimator; a `LoopRunner`, so `model(..., loop_runner=estimator)` computes with it.

    state_from: `rollout`, when `initial_state` is the recorded state that the replay starts from, or `trainer`,
    when it is z_0 and the trainer loops from there without gradient. loops_recorded: b, or None for all R.
    replay_from: which state the single recorded loop of `reuse` and `recompute` starts from. Raises ValueError
    for combinations that mean nothing.
    """

    state_from: StateFrom
    loops_recorded: int | None
    neumann_steps: int = 0
    replay_from: ReplayFrom = "penultimate"
    checkpoint_loops: bool = False

    def __post_init__(self) -> None:
        if self.neumann_steps < 0:
            raise ValueError(f"neumann_steps must be 0 or more, got {self.neumann_steps}")
        if self.loops_recorded is not None and self.loops_recorded < 1:
            raise ValueError(f"loops_recorded must be 1 or more, got {self.loops_recorded}")
        if self.loops_recorded != 1 and (self.neumann_steps or self.state_from == "rollout"):
            raise ValueError("a Neumann series and a state from the rollout both need loops_recorded = 1")
        if self.replay_from not in get_args(ReplayFrom):
            raise ValueError(f"replay_from is {self.replay_from!r}; choose from {', '.join(get_args(ReplayFrom))}")
        if self.loops_recorded != 1 and self.replay_from == "endpoint":
            raise ValueError("replay_from = 'endpoint' needs loops_recorded = 1: no loop would be recorded")

    @classmethod
    def preset(
        cls,
        name: str,
        neumann_steps: int = 4,
        replay_from: ReplayFrom = "penultimate",
        loops_recorded: int | None = None,
    ) -> "Estimator":
        """The estimator called `name`; each preset takes from the settings what concerns it.

        ValueError on an unknown name, or when `truncated` is not told how many loops to record.
        """
        if name == "reuse":
            return cls("rollout", 1, neumann_steps, replay_from)
        if name == "recompute":
            return cls("trainer", 1, neumann_steps, replay_from)
        if name == "truncated":
            if loops_recorded is None:
                raise ValueError("estimator 'truncated' needs loops_recorded, the number of loops to record")
            return cls("trainer", loops_recorded)
        if name in ("full", "full_checkpointed"):
            return cls("trainer", None, checkpoint_loops=name == "full_checkpointed")
        raise ValueError(f"estimator is {name!r}; choose from {', '.join(PRESETS)}")

    def gradient_free_loops(self, num_loops: int) -> int:
        """How many loops the trainer runs before it starts recording, of a model with R = `num_loops`."""
        if self.state_from == "rollout" or self.loops_recorded is None:
            return 0
        if self.replay_from == "endpoint":
            return num_loops
        return max(num_loops - self.loops_recorded, 0)

    def __call__(self, core: Core, state: Tensor, injected: Tensor, context: LoopContext, num_loops: int) -> Tensor:
        """From `state` [B, T, d] to the state that is read out [B, T, d]; see `LoopRunner`."""
        free = self.gradient_free_loops(num_loops)
        with torch.no_grad():
            state = run_loops(core, state, injected, context, free)
        if self.loops_recorded == 1:
            return core(state, injected, *context, record=partial(replay, neumann_steps=self.neumann_steps))
        for _ in range(num_loops - free):
            if self.checkpoint_loops:
                state = checkpoint(core, state, injected, *context, use_reentrant=False)
            else:
                state = core(state, injected, *context)
        return state
