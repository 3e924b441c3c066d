"""looprl gradients RECIPE: the policy gradient by every estimator, on the rollouts of a model, beside full BPTT."""

import json

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from transformers import AutoTokenizer
from transformers.utils import logging

from looprl.errors import UserError
from looprl.measure.compare_gradients import cases, compare_gradients, with_endpoint_states
from looprl.measure.estimator_rows import Row, estimator_name
from looprl.measure.gradients_figure import write_figure
from looprl.measure.policy_gradient import PolicyBatch
from looprl.models import LoopedForCausalLM, load_model
from looprl.recipe import parse_recipe, recipe_name
from looprl.runs import RunFolder
from looprl.training.control import policy_batch
from looprl.training.gradients_config import GradientsConfig
from looprl.training.train_recipe import LoadedTask, TrainRecipe, load_task
from looprl.training.trainer import LoopedGRPOTrainer

LEGEND = """
cosine, core    to full BPTT: of the whole gradient, of the core's parameters
state           1 - cosine of reuse to recompute: what the reused state costs
series          1 - cosine of recompute to full BPTT: what the short series costs
norm            over full BPTT's
gap             largest |log-prob - sampler's|
speed           of scoring + backward, over full BPTT's
reuse, endpoint replay from the penultimate state, from the endpoint
LS, K=auto n    least-squares coefficients; each sequence its own K, n on average"""


def run(argv: list[str]) -> int:
    """Sample, compare, print the table, and leave gradients.json and gradients.png in the run folder."""
    logging.disable_progress_bar()  # of loading and saving weights
    name = recipe_name(argv) or "gradients"
    name = name if name == "gradients" else f"gradients-{name}"
    recipe, args = parse_recipe(
        (TrainRecipe, GradientsConfig), argv, "looprl gradients", defaults={"output_dir": f"runs/{name}"}
    )
    RunFolder.check(args.output_dir, overwrite=recipe.overwrite)
    settings = {"command": "gradients", **vars(recipe), **args.to_dict()}
    task = load_task(recipe, args.seed)
    model = load_model(task.model_path)
    console = Console()
    loops = list(dict.fromkeys(args.num_loops or [model.config.num_loops]))
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("gradients", total=sum(len(cases(args.neumann_steps, R)) for R in loops))
        for num_loops in loops:
            batch = _rollouts(model, task, args, num_loops)
            compared = compare_gradients(model, batch, num_loops, args.neumann_steps, args.repeats, model.device.type)
            for row in compared:
                rows.append(row)
                progress.advance(bar)
    folder = RunFolder.create(args.output_dir, overwrite=recipe.overwrite)
    folder.write_config(settings)
    (folder.path / "gradients.json").write_text(json.dumps(rows, indent=1) + "\n")
    write_figure(rows, folder.path / "gradients.png")
    for num_loops in loops:
        console.print(gradients_table(rows, num_loops))
    print(LEGEND)
    console.print(Text(f"run folder: {folder.path}"), soft_wrap=True)
    return 0


def _rollouts(model: LoopedForCausalLM, task: LoadedTask, args: GradientsConfig, num_loops: int) -> PolicyBatch:
    """The first micro-batch that training at this number of loops would see."""
    trainer = LoopedGRPOTrainer(
        model,
        task.rewards,
        args.at(num_loops),
        task.train_set,
        processing_class=AutoTokenizer.from_pretrained(task.model_path),
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


def gradients_table(rows: list[Row], num_loops: int) -> Table:
    """Fidelity and cost at one number of loops, each `reuse` with its `recompute`; see `compare_gradients`.

    The two error sources are shown as what they take from a cosine of 1: the reused state (reuse against recompute)
    and the series cut short (recompute against full BPTT).
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        title=f"R = {num_loops}: policy gradients beside full BPTT ({rows[0]['shape']})",
        title_justify="left",
    )
    table.add_column("gradient", no_wrap=True)
    for column in ("cosine", "core", "state", "series", "norm", "gap", "speed", "MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    recomputed: Row = {}
    for row in (row for row in rows if row["num_loops"] == num_loops):
        if row["estimator"] == "recompute":
            recomputed = row
            continue
        is_reuse = row["estimator"] == "reuse"
        table.add_row(
            estimator_name(row) + (f" {row['products']:.1f}" if row["neumann_steps"] == "auto" else ""),
            _cosine(row["cosine_to_full"]["all"]),
            _cosine(row["cosine_to_full"].get("core"), 5),
            _shortfall(row["cosine_to_recompute"]["all"]) if is_reuse else "",
            _shortfall(recomputed["cosine_to_full"]["all"]) if is_reuse else "",
            f"{row['norm_ratio']:.3f}",
            f"{row['logprob_gap_max']:.0e}",
            f"{row['speedup_vs_full']:.2f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
        )
    return table


def _cosine(value: float | None, decimals: int = 6) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _shortfall(cosine: float | None) -> str:
    return "-" if cosine is None else f"{max(1 - cosine, 0):.0e}"
