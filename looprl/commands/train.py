"""looprl train RECIPE: RL post-training, with pass@1 on held-out prompts before and after."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from rich.console import Console
from transformers import AutoTokenizer

from looprl.data.checks import check_disjoint
from looprl.data.loading import load_task_dataset
from looprl.data.tasks import BUILT_IN_TASKS
from looprl.errors import UserError
from looprl.measure.evaluate import Evaluation, evaluate
from looprl.measure.summary import print_summary
from looprl.models import load_model
from looprl.recipe import parse_recipe, recipe_name
from looprl.rewards import check_columns, load_rewards
from looprl.runs import RunFolder, read_metrics
from looprl.training.callbacks import MetricsToRunFolder, show_only_progress_line
from looprl.training.config import LoopedGRPOConfig
from looprl.training.trainer import LoopedGRPOTrainer


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
    overwrite: bool = field(default=False, metadata={"help": "Replace an existing run folder."})


def run(argv: list[str]) -> int:
    """Evaluate, train, evaluate, and print what changed."""
    name = recipe_name(argv) or "train"
    recipe, args = parse_recipe(
        (TrainRecipe, LoopedGRPOConfig), argv, "looprl train", defaults={"output_dir": f"runs/{name}"}
    )
    if recipe.model is None or recipe.reward is None:
        raise UserError("model and reward are needed: name a recipe that has them, or give --model and --reward")
    rewards = load_rewards(recipe.reward)
    train_set = load_task_dataset(
        recipe.dataset, recipe.split, recipe.task_options, recipe.dataset_size, seed=args.seed
    )
    check_columns(rewards, train_set.column_names)
    held_out = _held_out(recipe)
    if held_out is not None:
        check_columns(rewards[:1], held_out.column_names)
        check_disjoint(train_set, held_out)
    model = load_model(recipe.model)
    folder = RunFolder.create(Path(args.output_dir), overwrite=recipe.overwrite)
    folder.write_config({"command": "train", **vars(recipe), **args.to_dict()})
    console = Console()
    console.print(f"{recipe.model}: {model.num_parameters():,} parameters; starting the rollout engine")
    trainer = LoopedGRPOTrainer(
        model,
        rewards,
        args,
        train_set,
        held_out,
        AutoTokenizer.from_pretrained(recipe.model),
        callbacks=[MetricsToRunFolder(folder)],
        on_completions=lambda step, rows: _write_completions(folder, step, rows),
    )
    show_only_progress_line(trainer)
    before = _evaluate(trainer, held_out, rewards[0])
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    after = _evaluate(trainer, held_out, rewards[0])
    saved = folder.checkpoint_path(trainer.state.global_step)
    trainer.save_model(str(saved))
    summary: dict[str, Any] = {
        "pass_at_1_before": before and before.pass_at_1,
        "pass_at_1_after": after and after.pass_at_1,
        "n": after.n if after else 0,
        "steps": trainer.state.global_step,
        "seconds": seconds,
    }
    folder.write_summary(summary)
    samples = []
    if before and after:
        folder.write_completions("eval-before", before.rows)
        folder.write_completions("eval-after", after.rows)
        samples = [
            {
                "prompt": old["prompt"],
                "answer": old.get("answer"),
                "before": old["completion"],
                "after": new["completion"],
            }
            for old, new in zip(before.rows, after.rows, strict=True)
        ]
    print_summary(console, summary, read_metrics(folder.path / "metrics.jsonl"), samples, folder.path)
    return 0


def _held_out(recipe: TrainRecipe) -> Dataset | None:
    source = recipe.eval_dataset or (recipe.dataset if recipe.dataset in BUILT_IN_TASKS else None)
    if source is None:
        return None
    options = recipe.task_options if source == recipe.dataset else None
    return load_task_dataset(source, recipe.eval_split, options, recipe.eval_size)


def _evaluate(trainer: LoopedGRPOTrainer, held_out: Dataset | None, reward: Any) -> Evaluation | None:
    if held_out is None:
        return None
    trainer.vllm_generation.sync_weights()
    trainer.meter.flush()  # an evaluation is no part of a step
    return evaluate(trainer.engine, trainer.processing_class, held_out, reward, trainer.sampling(), trainer.args.seed)


def _write_completions(folder: RunFolder, step: int, rows: list[dict[str, Any]]) -> None:
    folder.write_completions(f"step-{step:05d}", rows)
