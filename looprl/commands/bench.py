"""looprl bench: what each estimator costs, and what a whole RL step costs beside stock TRL."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils import logging

from looprl.errors import UserError
from looprl.measure.bench_figure import write_figure
from looprl.measure.bench_updates import CASES, LOOPS, SHAPES, bench_updates, jacobian_product_cost
from looprl.measure.estimator_rows import Row, estimator_name
from looprl.measure.summary import rate
from looprl.recipe import parse_recipe
from looprl.training.config import LoopedGRPOConfig
from looprl.training.product_bench import product_cost_under_zero
from looprl.training.step_bench import StepBench, bench_step
from looprl.training.train_recipe import TrainRecipe, load_task

RECIPE = "recipes/quickstart.yaml"
STEPS = 40


@dataclass
class BenchOptions:
    """What is measured and where it goes."""

    json: str | None = field(default=None, metadata={"help": "Write the rows of the first table to this file."})
    figure: str | None = field(default=None, metadata={"help": "Write the figure (PNG or SVG) to this file."})
    device: str = field(default="cpu", metadata={"help": "cpu (one thread, fp32) or cuda (bf16)."})
    repeats: int = field(default=5, metadata={"help": "Interleaved repeats of each measurement."})
    step: bool = field(default=True, metadata={"help": "Also compare whole RL steps with stock TRL."})
    zero: bool = field(default=True, metadata={"help": "Also time a J^T product under ZeRO-1, 2 and 3."})
    step_recipe: str = field(default=RECIPE, metadata={"help": "Recipe of the whole RL step."})
    step_count: int = field(default=STEPS, metadata={"help": "RL steps on each side."})

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; choose cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is cuda, but torch sees no CUDA device")
        if self.repeats < 1 or self.step_count < 1:
            raise ValueError("repeats and step_count must be at least 1")


def run(argv: list[str]) -> int:
    """Measure, print tables, and write JSON and figure where asked."""
    logging.disable_progress_bar()  # of loading and saving weights
    (options,) = parse_recipe((BenchOptions,), argv, "looprl bench")
    torch.set_num_threads(1)
    console = Console()
    rows = _measure_updates(options, console)
    console.print(updates_table(rows))
    ratio = jacobian_product_cost(SHAPES[-1], options.repeats, options.device)
    console.print(f"a J^T product costs {ratio:.2f} x a gradient-free loop ({SHAPES[-1]})")
    if options.zero:
        costs = product_cost_under_zero(options.repeats)
        shown = ", ".join(f"{cost:.2f} under ZeRO-{stage}" for stage, cost in costs.items())
        console.print(f"the same product costs, in each of two ranks, relative to one without DeepSpeed: {shown}")
    for path in filter(None, (options.json, options.figure)):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    if options.figure:
        write_figure(rows, Path(options.figure))
    if options.step:
        console.print(step_table(_measure_step(options)))
    return 0


def _measure_updates(options: BenchOptions, console: Console) -> list[Row]:
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("scoring + backward", total=len(SHAPES) * len(LOOPS) * len(CASES))
        for row in bench_updates(SHAPES, LOOPS, options.repeats, options.device):
            rows.append(row)
            progress.advance(task)
    return rows


def _measure_step(options: BenchOptions) -> StepBench:
    recipe, args = parse_recipe(
        (TrainRecipe, LoopedGRPOConfig),
        [options.step_recipe, "--max_steps", str(options.step_count)],
        "looprl bench",
        defaults={"output_dir": "runs/bench", "save_strategy": "no"},
    )
    task = load_task(recipe, args.seed)
    if task.held_out is None:
        raise UserError(f"{options.step_recipe} has no held-out prompts to compare the two sides on")
    return bench_step(task, args)


def updates_table(rows: list[Row]) -> Table:
    """Scoring + backward by estimator."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title="scoring + backward", title_justify="left")
    for column in ("shape", "R", "estimator"):
        table.add_column(column, no_wrap=True)
    for column in ("seconds", "range", "x full", "MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        low, high = row["seconds_range"]
        table.add_row(
            row["shape"],
            str(row["num_loops"]),
            estimator_name(row),
            f"{row['seconds']:.3f}",
            f"{low:.3f}-{high:.3f}",
            f"{row['speedup_vs_full']:.2f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
        )
    return table


def step_table(step: StepBench) -> Table:
    """The whole RL step beside stock TRL's, and where looprl's time goes."""
    table = Table(
        box=box.SIMPLE_HEAD, title=f"whole RL step, {step.steps} steps each", title_justify="left", title_style=""
    )
    for column in ("", "seconds per step", "pass@1 before", "pass@1 after"):
        table.add_column(column)
    rows: list[tuple[str, float, float | None]] = [
        ("looprl", step.looprl_seconds, step.looprl_pass_at_1),
        ("stock TRL (full BPTT, generate)", step.stock_seconds, step.stock_pass_at_1),
    ]
    for name, seconds, after in rows:
        table.add_row(name, f"{seconds:.2f}", rate(step.pass_at_1_before), rate(after))
    table.add_row("stock / looprl", f"{step.ratio:.2f} x", "", "")
    for phase, seconds in step.phases.items():
        table.add_row(f"  looprl {phase}", f"{seconds:.3f}", "", "")
    return table
