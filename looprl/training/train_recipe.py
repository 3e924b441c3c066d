"""What a training recipe names besides TRL's settings, and loading it: model, prompts, held-out prompts, rewards."""

from dataclasses import dataclass, field

from datasets import Dataset

from looprl.data.checks import check_disjoint
from looprl.data.loading import load_task_dataset
from looprl.data.tasks import BUILT_IN_TASKS
from looprl.errors import UserError
from looprl.rewards import Reward, check_columns, load_rewards
from looprl.shipped import with_shipped


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
    overwrite: bool = field(default=False, metadata={"help": "Replace an existing run folder."})

    def __post_init__(self) -> None:
        if self.eval_every is not None and self.eval_every < 1:
            raise UserError(f"eval_every must be a positive number of steps, got {self.eval_every}")


@dataclass(frozen=True)
class LoadedTask:
    """A recipe's model path, rewards and datasets; held_out is None where there is nothing to evaluate on."""

    model_path: str
    rewards: list[Reward]
    train_set: Dataset
    held_out: Dataset | None


def load_task(recipe: TrainRecipe, seed: int) -> LoadedTask:
    """Load and check everything but the model's weights. Raises UserError, naming what is missing or does not fit."""
    if recipe.model is None or recipe.reward is None:
        raise UserError("model and reward are needed: name a recipe that has them, or give --model and --reward")
    rewards = load_rewards(recipe.reward)
    train_set = load_task_dataset(recipe.dataset, recipe.split, recipe.task_options, recipe.dataset_size, seed=seed)
    check_columns(rewards, train_set.column_names)
    held_out = _held_out_prompts(recipe)
    if held_out is not None:
        check_columns(rewards[:1], held_out.column_names)
        check_disjoint(train_set, held_out)
    elif recipe.eval_every is not None:
        raise UserError("eval_every needs held-out prompts: name them with eval_dataset, or leave eval_every out")
    return LoadedTask(with_shipped(recipe.model), rewards, train_set, held_out)


def _held_out_prompts(recipe: TrainRecipe) -> Dataset | None:
    """The named evaluation dataset, or the test split of a built-in task; files and hub names have no default."""
    source = recipe.eval_dataset or (recipe.dataset if recipe.dataset in BUILT_IN_TASKS else None)
    if source is None:
        return None
    options = recipe.task_options if source == recipe.dataset else None
    return load_task_dataset(source, recipe.eval_split, options, recipe.eval_size)
