"""Gradient estimators: where the state comes from, how many loops are recorded, how many Neumann steps.

| preset              | state from                                              | recorded | Neumann steps |
|---------------------|---------------------------------------------------------|----------|---------------|
| `reuse`             | the rollout's record                                    | 1        | K             |
| `recompute`         | R - 1 (penultimate) or R (endpoint) gradient-free loops | 1        | K             |
| `truncated`         | R - b gradient-free loops                               | b        | 0             |
| `full`              | z_0                                                     | R        | 0             |
| `full_checkpointed` | z_0, each loop checkpointed                             | R        | 0             |
| `rltt`              | z_0, each loop read out (see `log_probs.py`)            | R        | 0             |
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from looprl.gradients.adjoint import AdjointMethod, AdjointSolver, NeumannSteps
from looprl.gradients.log_probs import LOOP_WEIGHTS, LoopWeights
from looprl.gradients.replay import OnSolved, replay
from looprl.models.loop import Core, LoopContext, run_loops

StateFrom = Literal["rollout", "trainer"]
ReplayFrom = Literal["penultimate", "endpoint"]
Preset = Literal["reuse", "recompute", "truncated", "full", "full_checkpointed", "rltt"]
PRESETS: tuple[str, ...] = get_args(Preset)
ONE_TERM = AdjointSolver(steps=0)


@dataclass(frozen=True)
class Estimator:
    """One gradient estimator; a `LoopRunner`, so `model(..., loop_runner=estimator)` computes with it.

    state_from: `rollout`, when `initial_state` is the recorded state that the replay starts from, or `trainer`,
    when it is z_0 and the trainer loops from there without gradient. loops_recorded: b, or None for all R.
    solver: how the single recorded loop of `reuse` and `recompute` finds its adjoint; `auto` never makes more than
    R - 1 products, as full BPTT has no further term. replay_from: which state that loop starts from. loop_weights: how
    the loss weights the log-probs of every loop, or None for those of the last one alone. on_solved: called in each
    backward pass with what the solver found. Raises ValueError for combinations that mean nothing.
    """

    state_from: StateFrom
    loops_recorded: int | None
    solver: AdjointSolver = ONE_TERM
    replay_from: ReplayFrom = "penultimate"
    checkpoint_loops: bool = False
    loop_weights: LoopWeights | None = None
    on_solved: OnSolved | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_choice("state_from", self.state_from, get_args(StateFrom))
        _check_choice("replay_from", self.replay_from, get_args(ReplayFrom))
        if self.loop_weights is not None:
            _check_choice("loop_weights", self.loop_weights, LOOP_WEIGHTS)
            if self.loops_recorded is not None:
                raise ValueError("loop_weights need loops_recorded = None: what is read out must be recorded")
        if self.loops_recorded is not None and self.loops_recorded < 1:
            raise ValueError(f"loops_recorded must be 1 or more, got {self.loops_recorded}")
        if self.loops_recorded != 1 and (self.solver.steps != 0 or self.state_from == "rollout"):
            raise ValueError("a Neumann series and a state from the rollout both need loops_recorded = 1")
        if self.loops_recorded != 1 and self.replay_from == "endpoint":
            raise ValueError("replay_from = 'endpoint' needs loops_recorded = 1: no loop would be recorded")

    @classmethod
    def preset(
        cls,
        name: str,
        neumann_steps: NeumannSteps = 4,
        replay_from: ReplayFrom = "penultimate",
        loops_recorded: int | None = None,
        adjoint_solver: AdjointMethod = "neumann",
        neumann_tolerance: float = AdjointSolver.tolerance,
        loop_weights: LoopWeights = "uniform",
    ) -> "Estimator":
        """The estimator called `name`; each preset takes from the settings what concerns it, and all are checked.

        ValueError on an unknown name, or when `truncated` is not told how many loops to record.
        """
        solver = AdjointSolver(neumann_steps, adjoint_solver, neumann_tolerance)
        _check_choice("loop_weights", loop_weights, LOOP_WEIGHTS)
        if name == "reuse":
            return cls("rollout", 1, solver, replay_from)
        if name == "recompute":
            return cls("trainer", 1, solver, replay_from)
        if name == "truncated":
            if loops_recorded is None:
                raise ValueError("estimator 'truncated' needs loops_recorded, the number of loops to record")
            return cls("trainer", loops_recorded)
        if name in ("full", "full_checkpointed"):
            return cls("trainer", None, checkpoint_loops=name == "full_checkpointed")
        if name == "rltt":
            return cls("trainer", None, loop_weights=loop_weights)
        raise ValueError(f"estimator is {name!r}; choose from {', '.join(PRESETS)}")

    @property
    def neumann_steps(self) -> NeumannSteps:
        """K, or `auto`."""
        return self.solver.steps

    def gradient_free_loops(self, num_loops: int) -> int:
        """How many loops the trainer runs before it starts recording, of a model with R = `num_loops`."""
        if self.state_from == "rollout" or self.loops_recorded is None:
            return 0
        if self.replay_from == "endpoint":
            return num_loops
        return max(num_loops - self.loops_recorded, 0)

    def __call__(self, core: Core, state: Tensor, injected: Tensor, context: LoopContext, num_loops: int) -> Tensor:
        """From `state` [B, T, d] to the state that is read out, or with loop_weights to all R; see `LoopRunner`."""
        free = self.gradient_free_loops(num_loops)
        with torch.no_grad():
            state = run_loops(core, state, injected, context, free)
        if self.loops_recorded == 1:
            solver = replace(self.solver, most_steps=min(self.solver.most_steps, num_loops - 1))
            record = partial(replay, solver=solver, on_solved=self.on_solved)
            return core(state, injected, *context, record=record)
        states = []
        for _ in range(num_loops - free):
            if self.checkpoint_loops:
                state = checkpoint(core, state, injected, *context, use_reentrant=False)
            else:
                state = core(state, injected, *context)
            states.append(state)
        return state if self.loop_weights is None else torch.stack(states)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; choose from {', '.join(choices)}")
