"""The whole RL step against stock TRL: the same model, task, batch and optimizer settings.

Stock TRL's `GRPOTrainer` samples with transformers' `generate` (with a K/V cache) and backpropagates through all
loops; it is used as it comes, with no looprl code but the model's.
"""

import tempfile
import time
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from looprl.data.tokenizer import load_tokenizer
from looprl.measure.evaluate import evaluate
from looprl.measure.summary import phase_seconds
from looprl.models import LoopedForCausalLM, load_model
from looprl.training.config import LoopedGRPOConfig
from looprl.training.train_recipe import LoadedTask
from looprl.training.trainer import LoopedGRPOTrainer

# What stock TRL is given from the recipe: everything that is its own, except how looprl samples and logs.
NOT_SHARED = {"output_dir", "use_vllm", "steps_per_generation", "generation_batch_size", "lr_scheduler_type"}


@dataclass(frozen=True)
class StepBench:
    """Seconds per step of both sides, pass@1 before and after, looprl's seconds by phase."""

    steps: int
    looprl_seconds: float
    stock_seconds: float
    pass_at_1_before: float | None
    looprl_pass_at_1: float | None
    stock_pass_at_1: float | None
    phases: dict[str, float]

    @property
    def ratio(self) -> float:
        """How many times longer stock TRL's step takes."""
        return self.stock_seconds / self.looprl_seconds


def bench_step(task: LoadedTask, args: LoopedGRPOConfig) -> StepBench:
    """Train both sides for `args.max_steps` from the same weights on the same prompts, and evaluate both.

    task: with held-out prompts.
    """
    tokenizer = load_tokenizer(task.model_path)
    load = partial(load_model, task.model_path, **(args.model_init_kwargs or {}))
    assert task.held_out is not None
    held_out, reward = task.held_out.prompts, task.held_out.reward
    trainer = LoopedGRPOTrainer(load(), task.rewards, args, task.train_set, held_out, tokenizer)
    trainer.remove_callback(PrinterCallback)

    def pass_at_1(model: LoopedForCausalLM) -> float | None:
        trainer.engine.sync_weights(model.named_parameters(), trainer.state.global_step)
        return evaluate(trainer.engine, tokenizer, held_out, reward, trainer.sampling(), args.seed).pass_at_1

    before = pass_at_1(trainer.model)
    looprl_seconds = _training_seconds(trainer)
    looprl_after = pass_at_1(trainer.model)
    stock_model = load()
    with tempfile.TemporaryDirectory(prefix="looprl-stock-") as folder:
        stock = GRPOTrainer(
            stock_model,
            list(task.rewards),
            args=GRPOConfig(output_dir=folder, **_stock_settings(args)),
            train_dataset=task.train_set,
            processing_class=tokenizer,
        )
        stock.remove_callback(PrinterCallback)
        stock_seconds = _training_seconds(stock)
    return StepBench(
        steps=args.max_steps,
        looprl_seconds=looprl_seconds / args.max_steps,
        stock_seconds=stock_seconds / args.max_steps,
        pass_at_1_before=before,
        looprl_pass_at_1=looprl_after,
        stock_pass_at_1=pass_at_1(stock_model),
        phases={name: total / args.max_steps for name, total in phase_seconds(trainer.state.log_history).items()},
    )


def _training_seconds(trainer: GRPOTrainer) -> float:
    start = time.perf_counter()
    trainer.train()
    return time.perf_counter() - start


def _stock_settings(args: LoopedGRPOConfig) -> dict[str, Any]:
    """The recipe's settings that differ from looprl's own defaults or that looprl changes from TRL's."""
    names = {field.name for field in fields(GRPOConfig) if field.init} - NOT_SHARED
    defaults = GRPOConfig(output_dir=args.output_dir, bf16=False, use_cpu=args.use_cpu)
    settings = {name: getattr(args, name) for name in names if getattr(args, name) != getattr(defaults, name)}
    return settings | {"lr_scheduler_type": args.lr_scheduler_type, "use_vllm": False, "bf16": args.bf16}
