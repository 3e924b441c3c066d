"""Completions of held-out prompts, judged by the task's reward, and pass@1: one completion per prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from looprl.data.prompts import prompt_token_ids
from looprl.measure.exit_gate import ExitGate, read_exit_gate
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.sampling import Sampling


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


@dataclass(frozen=True)
class Judged:
    """A completion, its reward (None: cannot be judged), its length in tokens, and whether it was cut off there.

    exits: what the exit gate said of its tokens, where the engine exports that.
    """

    completion: str
    reward: float | None
    tokens: int
    truncated: bool
    exits: ExitGate | None = None

    @property
    def passed(self) -> bool | None:
        """Whether the reward is 1; None where the completion cannot be judged."""
        return None if self.reward is None else self.reward == 1


def evaluate(
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    reward: Callable[..., list[float | None]],
    sampling: Sampling,
    seed: int,
) -> Evaluation:
    """Sample one completion per prompt from the engine's present weights and judge it, as `sample_and_judge` does.

    Completions that the reward cannot judge (None) do not count in n.
    """
    samples = sample_and_judge(engine, tokenizer, dataset, reward, sampling, seed)
    rows = [
        {**row, "completion": sample.completion, "reward": sample.reward}
        for row, sample in zip(dataset, samples, strict=True)
    ]
    return Evaluation.of(rows)


def sample_and_judge(
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    reward: Callable[..., list[float | None]],
    sampling: Sampling,
    seed: int,
) -> list[Judged]:
    """One completion for each row of the dataset, in order.

    dataset: a `prompt` column and the columns that the reward asks for. The same engine weights, prompts and seed give
    the same result.
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
    return [
        Judged(
            completion,
            value,
            len(record.completion_ids),
            record.finish_reason == "length",
            read_exit_gate(record, engine.exit_threshold) if engine.state_kind == "gate" else None,
        )
        for completion, value, record in zip(completions, rewards, records, strict=True)
    ]


def _ignore(name: str, value: Any) -> None:
    """What a reward logs while it is evaluated belongs to no training step."""
