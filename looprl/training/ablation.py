"""What an ablation compares: arms, each a training recipe with a few keys of its own, on the same seeds.

recipe: recipes/quickstart.yaml        what all arms share
overrides: {max_steps: 40}             changed for all of them
arms:
  full: {estimator: full}
  truncated-2: {estimator: truncated, loops_recorded: 2}
seeds: [0, 1, 2]
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from looprl.errors import UserError
from looprl.models.registry import find_family, read_settings
from looprl.recipe import parse_settings
from looprl.recipe_file import find_recipe, load_recipe
from looprl.suggest import did_you_mean
from looprl.training.config import LoopedGRPOConfig
from looprl.training.train_recipe import TrainRecipe, load_task

DEFAULT_ARMS: Mapping[str, Mapping[str, Any]] = {
    "full": {"estimator": "full"},
    "recompute": {"estimator": "recompute", "replay_from": "penultimate", "neumann_steps": 4},
    "reuse-endpoint": {"estimator": "reuse", "replay_from": "endpoint", "neumann_steps": 4},
    "reuse-penultimate": {"estimator": "reuse", "replay_from": "penultimate", "neumann_steps": 4},
    "reuse-penultimate-k0": {"estimator": "reuse", "replay_from": "penultimate", "neumann_steps": 0},
}
# What the ablation itself sets for each run.
_OWN_KEYS = ("output_dir", "overwrite", "resume", "seed")
_ARM_NAME = re.compile(r"\w[\w+-]*")  # no dot, so that no arm is called like a file of the report


@dataclass
class AblationRecipe:
    """What is compared, on which seeds, and where it goes. Raises UserError on what cannot be compared."""

    recipe: str = field(metadata={"help": "The training recipe that all arms share."})
    arms: dict[str, dict | None] = field(
        default_factory=lambda: {name: dict(keys) for name, keys in DEFAULT_ARMS.items()},
        metadata={"help": "Name of each arm with the recipe keys that are its own."},
    )
    seeds: list[int] = field(
        default_factory=lambda: [0, 1, 2], metadata={"help": "Seeds; each arm is trained on each of them."}
    )
    baseline: str = field(default="full", metadata={"help": "The arm that the others are compared with."})
    overrides: dict = field(default_factory=dict, metadata={"help": "Recipe keys that are changed for all arms."})
    output_dir: str | None = field(
        default=None, metadata={"help": "Folder of all runs, by default runs/RECIPE; finished runs in it are kept."}
    )
    overwrite: bool = field(default=False, metadata={"help": "Start anew in a folder that has runs."})

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise UserError(f"seeds must be one or more different numbers from 0 on, got {self.seeds}")
        for name in self.arms:
            if not _ARM_NAME.fullmatch(name):
                raise UserError(
                    f"arm {name!r}: its runs go to a folder of that name, so use letters, digits and any of _ + -"
                )
        if self.baseline not in self.arms:
            raise UserError(
                f"baseline {self.baseline!r} is not an arm; the arms are {', '.join(self.arms) or 'none'}."
                + did_you_mean(self.baseline, self.arms)
            )
        for where, keys in {"overrides": self.overrides, **_by_arm(self.own_keys)}.items():
            for key in _OWN_KEYS:
                if key in keys:
                    raise UserError(f"{where}: {key} is set by the ablation itself for each run; take it out")

    @property
    def own_keys(self) -> dict[str, dict[str, Any]]:
        """Every arm's own keys; an arm that is named and no more has none."""
        return {name: dict(keys or {}) for name, keys in self.arms.items()}


@dataclass(frozen=True)
class Arm:
    """One side of the comparison. own: its own keys; settings: all keys of its training recipe, but the seed."""

    name: str
    own: dict[str, Any]
    settings: dict[str, Any]


def resolve_arms(recipe: AblationRecipe) -> list[Arm]:
    """Make every arm's training recipe, and check each as far as that goes without training.

    Raises:
        UserError: no such recipe, an unknown key, a value that does not fit, settings that contradict each other, or
            data that cannot be used; the message names the arm.
    """
    shared = load_recipe(find_recipe(recipe.recipe)) | recipe.overrides
    shared = {key: value for key, value in shared.items() if key not in _OWN_KEYS}
    arms = [Arm(name, own, shared | own) for name, own in recipe.own_keys.items()]
    for where, arm in zip(_by_arm(recipe.own_keys), arms, strict=True):
        for key in ("num_processes", "zero_stage", "deepspeed"):
            if arm.settings.get(key) is not None:
                raise UserError(f"{where}: every run is trained in one process: set {key} to null in overrides")
        run = {"output_dir": recipe.output_dir or "runs/ablation", "seed": recipe.seeds[0]}
        train_recipe, args = parse_settings((TrainRecipe, LoopedGRPOConfig), arm.settings | run, where)
        try:
            task = load_task(train_recipe, args.seed)
            if args.estimator == "rltt":
                args.check_family(find_family(read_settings(task.model_path), train_recipe.model))
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        if task.held_out is None:
            raise UserError(f"{where}: there are no held-out prompts to compare on; name them with eval_dataset")
    return arms


def _by_arm(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The arms' keys by how messages call them."""
    return {f"arm {name!r}": keys for name, keys in arms.items()}
