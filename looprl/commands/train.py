"""looprl train RECIPE: RL post-training, with pass@1 on held-out prompts before and after.

`--resume` goes on with the run in `output_dir` from its last checkpoint, as if it had never stopped.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from transformers.utils import logging

from looprl.checkpoints import CheckpointStore, step_of
from looprl.data.tokenizer import load_tokenizer
from looprl.errors import Terminated
from looprl.launch import launch
from looprl.measure.evaluate import EvalSet, Evaluation
from looprl.measure.report import write_report
from looprl.measure.summary import print_summary
from looprl.models import load_model
from looprl.recipe import parse_recipe, read_recipe, recipe_name
from looprl.runs import RunFolder, read_metrics
from looprl.training.callbacks import MetricsToRunFolder, show_only_progress_line
from looprl.training.checkpoint_seam import check_resumable
from looprl.training.config import LoopedGRPOConfig
from looprl.training.distributed import from_main_process, launched_processes
from looprl.training.eval_every import EvalEvery, evaluate_now
from looprl.training.faults import StopOnSigterm
from looprl.training.resume import check_same_settings
from looprl.training.trackers import check_trackers
from looprl.training.train_recipe import TrainRecipe, load_task
from looprl.training.trainer import LoopedGRPOTrainer
from looprl.training.zero import parameter_count

CONFIGS = (TrainRecipe, LoopedGRPOConfig)


def run(argv: list[str]) -> int:
    """Evaluate, train, evaluate, and print what changed."""
    logging.disable_progress_bar()  # of loading and saving weights
    defaults = {"output_dir": f"runs/{recipe_name(argv) or 'train'}"}
    settings = read_recipe(CONFIGS, argv, "looprl train", defaults)
    processes = settings.get("num_processes") or 1
    if launched_processes() is None and (processes > 1 or settings.get("zero_stage") or settings.get("deepspeed")):
        known = {name: settings.get(name, False) for name in ("overwrite", "resume")}
        RunFolder.check(settings["output_dir"], **known).is_of_this_process()
        return launch(["train", *argv], processes)
    recipe, args = parse_recipe(CONFIGS, argv, "looprl train", defaults)
    check_trackers(args.report_to)
    asked = RunFolder.check(args.output_dir, overwrite=recipe.overwrite, resume=recipe.resume)
    resolved = {"command": "train", **vars(recipe), **args.to_dict()}
    checkpoint = None
    if recipe.resume:
        checkpoint = from_main_process(CheckpointStore(asked.path / "checkpoints").newest_good)
        if checkpoint is not None:
            check_resumable(checkpoint, args.world_size)
        check_same_settings(asked.path, resolved)
    task = load_task(recipe, args.seed)
    model = load_model(task.model_path, **(args.model_init_kwargs or {}))
    console = Console(quiet=args.process_index > 0)
    engines = _engines(args.world_size // args.vllm_tensor_parallel_size)
    console.print(f"{recipe.model}: {parameter_count(model):,} parameters; starting {engines}")
    estimator = args.make_estimator()
    for name, reason in model.left_as_they_are(estimator.loops_recorded, estimator.loop_weights == "exit").items():
        console.print(Text(f"not trained: {name}: {reason}"))
    trainer = LoopedGRPOTrainer(
        model,
        task.rewards,
        args,
        task.train_set,
        processing_class=load_tokenizer(task.model_path),
        eval_sets=list(task.eval_sets.values()),
    )
    # only now, so that a run which cannot start leaves the one that it would replace
    folder = RunFolder(Path(args.output_dir))
    folder.is_of_this_process()
    if trainer.is_world_process_zero():
        folder = RunFolder.create(args.output_dir, overwrite=recipe.overwrite, resume=recipe.resume)
        if recipe.resume:
            folder.rewind(step_of(checkpoint) if checkpoint else 0)
            console.print(f"resuming from {checkpoint}" if checkpoint else "no checkpoint yet: from the first step on")
        folder.write_config(resolved)
    trainer.on_completions = folder.write_completions
    trainer.add_callback(MetricsToRunFolder(folder))
    if recipe.eval_every is not None and task.held_out is not None:
        trainer.add_callback(EvalEvery(recipe.eval_every, trainer, task.held_out))
    show_only_progress_line(trainer)
    try:
        summary, samples = _train(trainer, task.eval_sets, folder, checkpoint)
    except (KeyboardInterrupt, Terminated):
        if trainer.is_world_process_zero():
            write_report(folder.path)
        raise
    if trainer.is_world_process_zero():
        report = write_report(folder.path)
        print_summary(console, summary, read_metrics(folder.path / "metrics.jsonl"), samples, folder.path)
        console.print(Text(f"report: {report}"), soft_wrap=True)
    return 0


def _engines(count: int) -> str:
    return "the rollout engine" if count == 1 else f"{count} rollout engines"


def _train(
    trainer: LoopedGRPOTrainer, eval_sets: Mapping[str, EvalSet], folder: RunFolder, checkpoint: Path | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Evaluate, train (on from the checkpoint), evaluate; leave the results in the run folder.

    Returns the summary and samples. The summary is written last: a run folder that has one is whole.
    Raises Terminated after SIGTERM.
    """
    before = _evaluate(trainer, eval_sets, folder, "before")
    with StopOnSigterm(trainer.in_any_process) as stop:
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    stopped = trainer.in_any_process(stop.requested)
    seconds = trainer.seconds_trained
    trainer.save_checkpoint(weights_only=trainer.args.save_strategy == "no" and not stopped)
    if stopped:
        raise Terminated(f"stopped by SIGTERM after step {trainer.state.global_step}; go on with --resume")
    after = _evaluate(trainer, eval_sets, folder, "after")
    summary = _pass_rates(before.get("eval"), after.get("eval"))
    if "transfer" in eval_sets:
        summary |= _pass_rates(before["transfer"], after["transfer"], "transfer_")
    summary |= {"steps": trainer.state.global_step, "seconds": seconds}
    if trainer.is_world_process_zero():
        folder.write_summary(summary)
    samples = []
    if "eval" in eval_sets:
        samples = [
            {
                "prompt": old["prompt"],
                "answer": old.get("answer"),
                "before": old["completion"],
                "after": new["completion"],
            }
            for old, new in zip(before["eval"].rows, after["eval"].rows, strict=True)
        ]
    return summary, samples


def _evaluate(
    trainer: LoopedGRPOTrainer, eval_sets: Mapping[str, EvalSet], folder: RunFolder, when: str
) -> dict[str, Evaluation]:
    evaluations = {}
    for name, eval_set in eval_sets.items():
        known = partial(folder.read_completions, f"{name}-{when}")  # made before the run stopped
        rows = from_main_process(known) if when == "before" else None
        evaluations[name] = evaluate_now(trainer, eval_set) if rows is None else Evaluation.of(rows)
        if trainer.is_world_process_zero():
            folder.write_completions(f"{name}-{when}", evaluations[name].rows)
    trainer.meter.flush()  # these evaluations are no part of a step
    return evaluations


def _pass_rates(before: Evaluation | None, after: Evaluation | None, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}pass_at_1_before": before and before.pass_at_1,
        f"{prefix}pass_at_1_after": after and after.pass_at_1,
        f"{prefix}n": after.n if after else 0,
    }
