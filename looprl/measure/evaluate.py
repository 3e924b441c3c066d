"""pass@1: one sampled completion per held-out prompt, judged by the task's reward."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from looprl.data.prompts import prompt_token_ids
from looprl.rollout.engine import RolloutEngine, Sampling


@dataclass(frozen=True)
class EvalSet:
    """Prompts that are measured but not trained on, and the reward that judges them.

    prompts: a `prompt` column and those that the reward asks for. max_completion_length: tokens; None is training's.
    name: what messages call the prompts.
    """

    prompts: Dataset
    reward: Callable[..., list[float | None]]
    max_completion_length: int | None = None
    name: str = "evaluation"


@dataclass(frozen=True)
class Evaluation:
    """pass_at_1: share of the n judged prompts with reward 1, None where n is 0. rows: one for every prompt."""

    pass_at_1: float | None
    n: int
    rows: list[dict[str, Any]]

    @classmethod
    def of(cls, rows: list[dict[str, Any]]) -> "Evaluation":
        """The evaluation that these rows, each with its `reward`, amount to."""
        judged = [row["reward"] for row in rows if row["reward"] is not None]
        return cls(sum(value == 1 for value in judged) / len(judged) if judged else None, len(judged), rows)


def evaluate(
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    reward: Callable[..., list[float | None]],
    sampling: Sampling,
    seed: int,
) -> Evaluation:
    """Sample one completion per prompt from the engine's present weights and judge it.

    dataset: a `prompt` column and the columns that the reward asks for. Completions that the reward cannot judge
    (None) do not count in n. The same engine weights, prompts and seed give the same result.
    """
    engine.reset_prefix_cache()
    records = engine.generate(prompt_token_ids(dataset["prompt"][:], tokenizer), sampling, seed)
    token_ids = [list(record.completion_ids) for record in records]
    completions = tokenizer.batch_decode(token_ids, skip_special_tokens=True)
    columns = {name: dataset[name][:] for name in dataset.column_names if name != "prompt"}
    from_trainer = dict(trainer_state=None, log_extra=_ignore, log_metric=_ignore)
    rewards = reward(
        prompts=dataset["prompt"][:], completions=completions, completion_ids=token_ids, **columns, **from_trainer
    )
    rows = [
        {**row, "completion": completion, "reward": value}
        for row, completion, value in zip(dataset, completions, rewards, strict=True)
    ]
    return Evaluation.of(rows)


def _ignore(name: str, value: Any) -> None:
    """What a reward logs while it is evaluated belongs to no training step."""
