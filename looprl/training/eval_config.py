"""Settings of `looprl eval`: a training recipe as it is, with a list of loops and k completions per prompt."""

from dataclasses import dataclass, field

from looprl.errors import UserError
from looprl.measure.evaluate import EvalSet
from looprl.rewards import check_columns, load_rewards
from looprl.rollout.sampling import Sampling
from looprl.training.config import LoopedGRPOConfig
from looprl.training.train_recipe import TrainRecipe, held_out_set, transfer_set


@dataclass
class EvalRecipe(TrainRecipe):
    """The model and the held-out prompts of a training recipe; what it trains on does not matter."""

    resume: bool = field(default=False, metadata={"help": "Go on with an interrupted evaluation."})


@dataclass
class EvalConfig(LoopedGRPOConfig):
    """A training recipe's settings; only those of sampling matter. Raises as LoopedGRPOConfig does."""

    num_loops: list[int] | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Numbers of loops R to evaluate at; by default the model's own."}
    )
    k: int = field(default=8, metadata={"help": "Completions per prompt."})
    temperature: float = field(
        default=1.0, metadata={"help": "Sampling temperature; 0 is greedy, for a single completion per prompt."}
    )
    exit_gate: bool | None = field(
        default=None,
        metadata={
            "help": "Read the exit gate, by default where the model has one. true: at every depth up to the model's "
            "loops, where num_loops says nothing else."
        },
    )
    exit_thresholds: list[float] | None = field(
        default=None,
        metadata={"help": "Also decode with early exit, where the gate's probabilities sum to q; at the most loops."},
    )
    batch_size: int = field(default=256, metadata={"help": "Completions sampled at a time; other draws with another."})

    def __post_init__(self) -> None:
        num_loops, temperature = self.num_loops, self.temperature
        if num_loops == [] or min(num_loops or [1]) < 1:
            raise UserError(f"num_loops needs numbers of loops of at least 1, got {num_loops}")
        if self.k < 1 or self.batch_size < 1:
            raise UserError(f"k and batch_size must be at least 1, got {self.k} and {self.batch_size}")
        if temperature == 0 and self.k > 1:
            raise UserError(f"at temperature 0 all completions of a prompt are equal: set k to 1, not {self.k}")
        if not all(0 < threshold <= 1 for threshold in self.exit_thresholds or []):
            raise UserError(f"exit_thresholds are probabilities above 0, up to 1; got {self.exit_thresholds}")
        if self.exit_thresholds and self.exit_gate is False:
            raise UserError("exit_thresholds need the exit gate: leave exit_gate out")
        Sampling(self.max_completion_length or 1, (), temperature)
        self.stay_alone()
        self.num_loops, self.temperature = None, 1.0  # training takes no list and is never greedy
        super().__post_init__()
        self.num_loops, self.temperature = num_loops, temperature


@dataclass(frozen=True)
class Evaluated:
    """Prompts to evaluate on; name: theirs in file names (`eval`, `transfer`), task: what the results call them."""

    name: str
    task: str
    eval_set: EvalSet


def load_evaluated(recipe: EvalRecipe) -> list[Evaluated]:
    """Load the held-out prompts and those of the second task, where the recipe has one, each with its reward.

    Raises UserError, naming what is missing or does not fit.
    """
    missing = [name for name in ("model", "reward") if getattr(recipe, name) is None]
    if missing:
        flags = " and ".join(f"--{name}" for name in missing)
        raise UserError(f"{' and '.join(missing)} needed: name a recipe that has them, or give {flags}")
    reward = load_rewards(recipe.reward or [])[0]
    held_out = held_out_set(recipe, reward)
    if held_out is None:
        raise UserError(
            f"dataset {recipe.dataset} comes without held-out prompts: name them with --eval_dataset (a built-in task, "
            "a file or a hub name) and --eval_split"
        )
    evaluated = [Evaluated("eval", recipe.eval_dataset or recipe.dataset, held_out)]
    second = transfer_set(recipe, reward)
    if second is not None:
        evaluated.append(Evaluated("transfer", f"{recipe.transfer_dataset} (transfer)", second))
    for each in evaluated:
        check_columns([each.eval_set.reward], each.eval_set.prompts.column_names)
    return evaluated
