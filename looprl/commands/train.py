"""looprl train RECIPE: RL post-training, with pass@1 on held-out prompts before and after."""

import time
from typing import Any

from datasets import Dataset
from rich.console import Console
from rich.text import Text
from transformers import AutoTokenizer
from transformers.utils import logging

from looprl.measure.evaluate import Evaluation
from looprl.measure.report import write_report
from looprl.measure.summary import print_summary
from looprl.models import load_model
from looprl.recipe import parse_recipe, recipe_name
from looprl.runs import RunFolder, read_metrics
from looprl.training.callbacks import MetricsToRunFolder, show_only_progress_line
from looprl.training.config import LoopedGRPOConfig
from looprl.training.eval_every import EvalEvery, evaluate_now
from looprl.training.trackers import check_trackers
from looprl.training.train_recipe import TrainRecipe, load_task
from looprl.training.trainer import LoopedGRPOTrainer


def run(argv: list[str]) -> int:
    """Evaluate, train, evaluate, and print what changed."""
    logging.disable_progress_bar()  # of loading and saving weights
    name = recipe_name(argv) or "train"
    recipe, args = parse_recipe(
        (TrainRecipe, LoopedGRPOConfig), argv, "looprl train", defaults={"output_dir": f"runs/{name}"}
    )
    check_trackers(args.report_to)
    RunFolder.check(args.output_dir, overwrite=recipe.overwrite)
    settings = {"command": "train", **vars(recipe), **args.to_dict()}
    task = load_task(recipe, args.seed)
    model = load_model(task.model_path)
    console = Console()
    console.print(f"{recipe.model}: {model.num_parameters():,} parameters; starting the rollout engine")
    trainer = LoopedGRPOTrainer(
        model,
        task.rewards,
        args,
        task.train_set,
        task.held_out,
        AutoTokenizer.from_pretrained(task.model_path),
    )
    # only now, so that a run which cannot start leaves the one that it would replace
    folder = RunFolder.create(args.output_dir, overwrite=recipe.overwrite)
    folder.write_config(settings)
    trainer.on_completions = folder.write_completions
    trainer.add_callback(MetricsToRunFolder(folder))
    if recipe.eval_every is not None and task.held_out is not None:
        trainer.add_callback(EvalEvery(recipe.eval_every, trainer, task.held_out, task.rewards[0]))
    show_only_progress_line(trainer)
    try:
        summary, samples = _train(trainer, task.held_out, task.rewards[0], folder)
    except KeyboardInterrupt:
        write_report(folder.path)
        raise
    report = write_report(folder.path)
    print_summary(console, summary, read_metrics(folder.path / "metrics.jsonl"), samples, folder.path)
    console.print(Text(f"report: {report}"), soft_wrap=True)
    return 0


def _train(
    trainer: LoopedGRPOTrainer, held_out: Dataset | None, reward: Any, folder: RunFolder
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Evaluate, train, evaluate; leave the results in the run folder, and return the summary and samples."""
    before = _evaluate(trainer, held_out, reward)
    if before:
        folder.write_completions("eval-before", before.rows)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    trainer.save_model(str(folder.checkpoint_path(trainer.state.global_step)))
    after = _evaluate(trainer, held_out, reward)
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
    return summary, samples


def _evaluate(trainer: LoopedGRPOTrainer, held_out: Dataset | None, reward: Any) -> Evaluation | None:
    if held_out is None:
        return None
    evaluation = evaluate_now(trainer, held_out, reward)
    trainer.meter.flush()  # this evaluation is no part of a step
    return evaluation
