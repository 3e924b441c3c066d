"""Pretraining of a looped model: next tokens, truncated BPTT, a number of loops drawn per micro-batch.

looprl pretrain recipes/quickstart_pretrain.yaml
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments

from looprl.errors import UserError
from looprl.gradients import Estimator
from looprl.models import LoopedForCausalLM
from looprl.models.contract import at_least_fp32
from looprl.training.depth_prior import DepthPrior, DepthPriorKind


@dataclass
class LoopedPretrainConfig(TrainingArguments):
    """transformers' TrainingArguments, the depth prior and truncated BPTT. Raises ValueError on a bad prior."""

    depth_prior: DepthPriorKind = field(
        default="poisson_lognormal", metadata={"help": "Distribution of the number of loops per micro-batch."}
    )
    depth_mean: float = field(default=6.0, metadata={"help": "Mean number of loops."})
    depth_sigma: float = field(default=0.5, metadata={"help": "Spread of the Poisson-lognormal prior."})
    depth_max: int = field(default=16, metadata={"help": "Largest number of loops."})
    loops_recorded: int = field(default=4, metadata={"help": "Backpropagate through the last b loops."})
    prompt_weight: float = field(
        default=0.1, metadata={"help": "Weight of prompt tokens in the loss; completion tokens have 1."}
    )
    logging_steps: float = field(default=10, metadata={"help": "Log every N steps."})
    save_strategy: str = field(default="no", metadata={"help": "The final weights are always saved."})
    report_to: str | list[str] | None = field(default="none", metadata={"help": "Trackers besides the run folder."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "transformers' own progress bar."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Leave this false."})

    def __post_init__(self) -> None:
        if not torch.cuda.is_available():
            self.use_cpu = True
        super().__post_init__()
        self.make_depth_prior()
        Estimator.preset("truncated", loops_recorded=self.loops_recorded)
        if not 0 <= self.prompt_weight <= 1:
            raise ValueError(f"prompt_weight must lie in [0, 1], got {self.prompt_weight}")

    def make_depth_prior(self) -> DepthPrior:
        """The depth prior that these settings describe."""
        return DepthPrior(self.depth_prior, self.depth_mean, self.depth_sigma, self.depth_max)


class LoopedPretrainer(Trainer):
    """transformers' Trainer on token weights, with the loops of each micro-batch drawn from the depth prior."""

    args: LoopedPretrainConfig

    def __init__(
        self, model: LoopedForCausalLM, args: LoopedPretrainConfig, train_dataset: Dataset, pad_token_id: int, **kw: Any
    ):
        """train_dataset: rows from `weighted_tokens`."""

        def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
            return pad_rows(rows, pad_token_id)

        super().__init__(model=model, args=args, train_dataset=train_dataset, data_collator=collate, **kw)
        self.model_accepts_loss_kwargs = False  # the loss is a mean over its own micro-batch
        self.depth_prior = args.make_depth_prior()
        self.estimator = Estimator.preset("truncated", loops_recorded=args.loops_recorded)
        self.depths = torch.Generator().manual_seed(args.seed)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """Weighted mean cross-entropy of the next tokens after a drawn number of loops."""
        ids, weights = inputs["input_ids"], inputs["weights"][:, 1:]
        output = model(
            ids[:, :-1],
            inputs["attention_mask"][:, :-1],
            num_loops=self.depth_prior.draw(self.depths),
            loop_runner=self.estimator,
        )
        logits = at_least_fp32(output.logits).flatten(0, 1)
        losses = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        return (loss, output) if return_outputs else loss


def weighted_tokens(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, prompt_weight: float, max_length: int
) -> Dataset:
    """Tokens and loss weights of worked answers: prompt, then `answer`, then EOS.

    rows: with `prompt` and `answer` columns. UserError when a row is longer than `max_length` tokens.
    """

    def encode(row: dict[str, Any]) -> dict[str, list[Any]]:
        prompt = tokenizer(row["prompt"])["input_ids"]
        answer = tokenizer(row["answer"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        if len(prompt) + len(answer) > max_length:
            raise UserError(
                f"a row has {len(prompt) + len(answer)} tokens, the model's window is {max_length}: "
                f"{row['prompt'][:80]!r}"
            )
        return {"input_ids": prompt + answer, "weights": [prompt_weight] * len(prompt) + [1.0] * len(answer)}

    if "answer" not in rows.column_names:
        raise UserError(f"pretraining needs an 'answer' column; the dataset has {', '.join(rows.column_names)}")
    return rows.map(encode, remove_columns=rows.column_names)


def pad_rows(rows: list[dict[str, Any]], pad_token_id: int) -> dict[str, Tensor]:
    """Right-pad rows to their longest: input_ids, attention_mask, weights, each [B, T]."""
    length = max(len(row["input_ids"]) for row in rows)

    def padded(values: list[Any], fill: float) -> list[Any]:
        return values + [fill] * (length - len(values))

    return {
        "input_ids": torch.tensor([padded(row["input_ids"], pad_token_id) for row in rows]),
        "attention_mask": torch.tensor([padded([1] * len(row["input_ids"]), 0) for row in rows]),
        "weights": torch.tensor([padded(row["weights"], 0.0) for row in rows]),
    }
