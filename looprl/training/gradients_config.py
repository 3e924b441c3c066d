"""Settings of `looprl gradients`: those of a training recipe, with lists of loops and of Neumann steps."""

import copy
from dataclasses import dataclass, field

from looprl.errors import UserError
from looprl.gradients import AdjointSolver, NeumannSteps
from looprl.training.config import LoopedGRPOConfig


@dataclass
class GradientsConfig(LoopedGRPOConfig):
    """A training recipe's settings, for one batch of rollouts at each number of loops.

    All estimators are compared, whichever one the recipe trains with, and what concerns the optimizer does not matter.
    Raises as LoopedGRPOConfig does.
    """

    num_loops: list[int] | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Numbers of loops R to compare at; by default the model's own."}
    )
    neumann_steps: list[NeumannSteps] = field(  # type: ignore[assignment]
        default_factory=lambda: [0, 1, 2, 4, 8, "auto"], metadata={"help": "Neumann steps K to compare: numbers, auto."}
    )
    repeats: int = field(default=3, metadata={"help": "Interleaved repeats of each timing."})
    random_advantages: bool = field(
        default=False,
        metadata={"help": "Draw advantages of +1 and -1 instead of using rewards: for a model that never succeeds."},
    )

    def __post_init__(self) -> None:
        lists = self.num_loops, self.neumann_steps
        if self.num_loops == [] or not self.neumann_steps:
            raise UserError("num_loops and neumann_steps need at least one value each")
        if min(self.num_loops or [1]) < 1 or self.repeats < 1:
            raise UserError(f"num_loops and repeats must be at least 1, got {self.num_loops} and {self.repeats}")
        for steps in self.neumann_steps:
            AdjointSolver(steps)
        self.estimator, self.replay_from, self.control_every = "reuse", "penultimate", None
        self.num_loops, self.neumann_steps = None, 0  # type: ignore[assignment]
        self.stay_alone()
        super().__post_init__()
        self.num_loops, self.neumann_steps = lists

    def at(self, num_loops: int) -> LoopedGRPOConfig:
        """These settings for rollouts of `num_loops` loops."""
        at = copy.copy(self)
        at.num_loops, at.neumann_steps = num_loops, 0  # type: ignore[assignment]
        return at
