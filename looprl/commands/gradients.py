"""looprl gradients RECIPE: the policy gradient by every estimator, on the rollouts of a model, beside full BPTT."""

import torch
from rich.console import Console
from rich.progress import Progress
from transformers.utils import logging

from looprl.data.tokenizer import load_tokenizer
from looprl.errors import UserError
from looprl.measure.compare_gradients import cases, compare_gradients, with_endpoint_states
from looprl.measure.estimator_rows import Row
from looprl.measure.gradients_report import LEGEND, gradients_cells, write_gradients_report
from looprl.measure.policy_gradient import PolicyBatch
from looprl.models import LoopedForCausalLM, load_model
from looprl.recipe import parse_recipe, recipe_name
from looprl.runs import RunFolder
from looprl.training.control import policy_batch
from looprl.training.gradients_config import GradientsConfig
from looprl.training.train_recipe import LoadedTask, TrainRecipe, load_task
from looprl.training.trainer import LoopedGRPOTrainer


def run(argv: list[str]) -> int:
    """Sample, compare, print the table, and leave gradients.json and gradients.png in the run folder."""
    logging.disable_progress_bar()  # of loading and saving weights
    name = recipe_name(argv) or "gradients"
    name = name if name == "gradients" else f"gradients-{name}"
    recipe, args = parse_recipe(
        (TrainRecipe, GradientsConfig), argv, "looprl gradients", defaults={"output_dir": f"runs/{name}"}
    )
    if recipe.resume:
        raise UserError("a comparison is not resumed: leave --resume out, and replace the earlier one with --overwrite")
    RunFolder.check(args.output_dir, overwrite=recipe.overwrite)
    settings = {"command": "gradients", **vars(recipe), **args.to_dict()}
    task = load_task(recipe, args.seed)
    model = load_model(task.model_path, **(args.model_init_kwargs or {}))
    console = Console()
    loops = list(dict.fromkeys(args.num_loops or [model.config.num_loops]))
    folder: RunFolder | None = None
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(loops))
        for num_loops in loops:
            progress.update(bar, description=f"R = {num_loops}: sampling")
            batch = _rollouts(model, task, args, num_loops)
            if folder is None:  # only now, so that what cannot start leaves the run that it would replace
                folder = RunFolder.create(args.output_dir, overwrite=recipe.overwrite)
                folder.write_config(settings)
            count = len(cases(args.neumann_steps, num_loops, exit_gate=not model.FAMILY.no_exit_gate))
            progress.update(bar, description=f"R = {num_loops}: timing and comparing {count} gradients")
            rows += compare_gradients(
                model, batch, num_loops, args.neumann_steps, args.repeats, model.device.type, args.neumann_tolerance
            )
            report = write_gradients_report(folder.path, rows, settings)  # after each, so that Ctrl-C costs one
            progress.advance(bar)
    for cells in gradients_cells(rows):
        console.print(cells.as_text())
    print(f"\n{LEGEND}\n\nreport: {report}")
    return 0


def _rollouts(model: LoopedForCausalLM, task: LoadedTask, args: GradientsConfig, num_loops: int) -> PolicyBatch:
    """The first micro-batch that training at this number of loops would see."""
    trainer = LoopedGRPOTrainer(
        model,
        task.rewards,
        args.at(num_loops),
        task.train_set,
        processing_class=load_tokenizer(task.model_path),
    )
    batch = trainer.sample_batch()
    if args.random_advantages:
        signs = torch.randint(2, batch["advantages"].shape, generator=torch.Generator().manual_seed(args.seed))
        batch["advantages"] = (signs * 2.0 - 1).to(batch["advantages"])
    if not batch["advantages"].any():
        raise UserError(
            "the completions of every prompt have equal rewards, so every gradient is zero: take more prompts "
            "(per_device_train_batch_size) or give --random_advantages true"
        )
    return with_endpoint_states(model, policy_batch(batch, "penultimate", args.temperature))
