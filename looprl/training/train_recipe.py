"""What a training recipe names besides TRL's settings, and loading it: model, rewards, prompts."""

from dataclasses import dataclass, field

from datasets import Dataset

from looprl.data.checks import check_disjoint
from looprl.data.loading import load_task_dataset
from looprl.data.tasks import BUILT_IN_TASKS
from looprl.errors import UserError
from looprl.measure.evaluate import EvalSet
from looprl.rewards import Reward, check_columns, load_reward, load_rewards
from looprl.shipped import with_shipped

_TRANSFER_DETAILS = ("transfer_task_options", "transfer_size", "transfer_reward", "transfer_max_completion_length")


@dataclass
class TrainRecipe:
    """What is trained, on what, and what is rewarded."""

    model: str | None = field(default=None, metadata={"help": "Folder or hub name of a looped model."})
    dataset: str = field(default="arithmetic", metadata={"help": "A built-in task, a file or a hub name."})
    split: str = field(default="train", metadata={"help": "Split to train on."})
    task_options: dict | None = field(default=None, metadata={"help": "Knobs of a built-in task."})
    dataset_size: int | None = field(default=None, metadata={"help": "How many training rows; by default all."})
    reward: list[str] | None = field(default=None, metadata={"help": "FILE.py:FUNCTION, one or several."})
    eval_dataset: str | None = field(
        default=None, metadata={"help": "Held-out prompts; by default the test split of a built-in task."}
    )
    eval_split: str = field(default="test", metadata={"help": "Split of the held-out prompts."})
    eval_size: int | None = field(default=None, metadata={"help": "How many held-out prompts; by default all."})
    eval_every: int | None = field(
        default=None, metadata={"help": "Also measure pass@1 every N steps; by default only before and after."}
    )
    transfer_dataset: str | None = field(
        default=None, metadata={"help": "A second task, never trained on: pass@1 is measured before and after."}
    )
    transfer_split: str = field(default="test", metadata={"help": "Split of the second task."})
    transfer_task_options: dict | None = field(
        default=None, metadata={"help": "Knobs of the second task where it is built in."}
    )
    transfer_size: int | None = field(default=None, metadata={"help": "How many prompts of it; by default all."})
    transfer_reward: str | None = field(
        default=None, metadata={"help": "FILE.py:FUNCTION that judges the second task; by default the first reward."}
    )
    transfer_max_completion_length: int | None = field(
        default=None, metadata={"help": "Tokens of a completion on the second task; by default as in training."}
    )
    overwrite: bool = field(default=False, metadata={"help": "Replace an existing run folder."})
    resume: bool = field(default=False, metadata={"help": "Go on with the run in output_dir from its last checkpoint."})

    def __post_init__(self) -> None:
        if self.eval_every is not None and self.eval_every < 1:
            raise UserError(f"eval_every must be a positive number of steps, got {self.eval_every}")
        if self.transfer_max_completion_length is not None and self.transfer_max_completion_length < 1:
            raise UserError(
                "transfer_max_completion_length must be a positive number of tokens, got "
                f"{self.transfer_max_completion_length}"
            )
        if self.transfer_dataset is None:
            idle = [name for name in _TRANSFER_DETAILS if getattr(self, name) is not None]
            if idle:
                raise UserError(f"{', '.join(idle)} given, but no transfer_dataset to apply to: name the second task")


@dataclass(frozen=True)
class LoadedTask:
    """A recipe's model path, rewards, prompts to train on, and those to be measured on, where there are any.

    held_out: prompts of the trained task. transfer: those of a second one.
    """

    model_path: str
    rewards: list[Reward]
    train_set: Dataset
    held_out: EvalSet | None
    transfer: EvalSet | None = None

    @property
    def eval_sets(self) -> dict[str, EvalSet]:
        """What there is to be measured on, by the name that its completion files have: `eval`, `transfer`."""
        named = {"eval": self.held_out, "transfer": self.transfer}
        return {name: eval_set for name, eval_set in named.items() if eval_set is not None}


def load_task(recipe: TrainRecipe, seed: int) -> LoadedTask:
    """Load and check everything but the model's weights. Raises UserError, naming what is missing or does not fit."""
    if recipe.model is None or recipe.reward is None:
        raise UserError("model and reward are needed: name a recipe that has them, or give --model and --reward")
    rewards = load_rewards(recipe.reward)
    train_set = load_task_dataset(recipe.dataset, recipe.split, recipe.task_options, recipe.dataset_size, seed=seed)
    check_columns(rewards, train_set.column_names)
    task = LoadedTask(
        with_shipped(recipe.model),
        rewards,
        train_set,
        held_out_set(recipe, rewards[0]),
        transfer_set(recipe, rewards[0]),
    )
    for eval_set in task.eval_sets.values():
        check_columns([eval_set.reward], eval_set.prompts.column_names)
        check_disjoint(train_set, eval_set.prompts, eval_set.name)
    if task.held_out is None and recipe.eval_every is not None:
        raise UserError("eval_every needs held-out prompts: name them with eval_dataset, or leave eval_every out")
    return task


def held_out_set(recipe: TrainRecipe, reward: Reward) -> EvalSet | None:
    """The named evaluation dataset, or the test split of a built-in task; files and hub names have no default."""
    source = recipe.eval_dataset or (recipe.dataset if recipe.dataset in BUILT_IN_TASKS else None)
    if source is None:
        return None
    options = recipe.task_options if source == recipe.dataset else None
    return EvalSet(load_task_dataset(source, recipe.eval_split, options, recipe.eval_size), reward)


def transfer_set(recipe: TrainRecipe, reward: Reward) -> EvalSet | None:
    """The second task's prompts with its own reward or the given one; None where the recipe names no second task."""
    if recipe.transfer_dataset is None:
        return None
    prompts = load_task_dataset(
        recipe.transfer_dataset, recipe.transfer_split, recipe.transfer_task_options, recipe.transfer_size
    )
    if recipe.transfer_reward is not None:
        reward = load_reward(recipe.transfer_reward)
    return EvalSet(prompts, reward, recipe.transfer_max_completion_length, name="transfer")
