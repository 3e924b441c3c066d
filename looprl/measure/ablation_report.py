"""What an ablation leaves behind: `ablation.json`, its figures as PNG files, and all of it in `report.html`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from looprl.measure.ablation import ArmRow
from looprl.measure.ablation_figures import differences, learning_curves, seconds_by_phase
from looprl.measure.ablation_tables import cost_cells, quality_cells, run_cells, transfer_cells
from looprl.measure.page import configuration, figure, notes, page, section, shown
from looprl.measure.report import REPORT_FILE
from looprl.runs import RunFolder, write_atomically

ROWS_FILE = "ablation.json"


def write_ablation_report(folder: Path, rows: Sequence[ArmRow], num_runs: int, settings: Mapping[str, Any]) -> Path:
    """Write `ablation.json`, the figures and `report.html` into the ablation's folder, and return the report's path.

    num_runs: how many runs the ablation has in all; `rows` hold those that are finished. settings: what was compared.
    """
    RunFolder(folder).write_json(ROWS_FILE, list(rows))
    figures = {
        "pass_at_1.png": learning_curves(rows, "pass_rates", "pass@1 (share of prompts)"),
        "differences.png": differences(rows),
        "reward.png": learning_curves(rows, "rewards", "reward"),
        "seconds_by_phase.png": seconds_by_phase(rows),
    }
    for name, png in figures.items():
        if png is not None:
            (folder / name).write_bytes(png)
    finished = sum(len(row.runs) for row in rows)
    missing = [f"{finished} of {num_runs} runs are finished; this is what they show."] if finished < num_runs else []
    quality, transfer, cost = quality_cells(rows), transfer_cells(rows), cost_cells(rows)
    sections = [
        notes(missing),
        section("Result", quality.beside(cost).as_html() + (transfer.as_html() if transfer else "") + _READING),
        section(
            "Learning curves",
            figure(
                figures["pass_at_1.png"],
                f"pass@1 by step, a panel for each arm; after training: {quality.in_words(1)}",
                "pass@1 on the held-out prompts, the same for all arms and seeds.",
            )
            + figure(
                figures["reward.png"],
                "Mean reward by step, a panel for each arm",
                "Mean reward of the completions sampled in each step.",
            ),
        ),
        section(
            f"Differences to {shown(rows[0].baseline)}",
            figure(
                figures["differences.png"],
                f"Difference in pass@1 after training: {quality.in_words(2)}",
                "Each seed's difference, their mean and its interval.",
            ),
        ),
        section(
            "Where the time went",
            figure(
                figures["seconds_by_phase.png"],
                f"Seconds of a step by phase, a bar for each arm; scoring + backward: {cost.in_words(0)}",
                "Means over all steps but the first, and over the seeds; without evaluations on the way.",
            ),
        ),
        section("Every run", run_cells(rows).as_html()),
        configuration(settings),
    ]
    target = folder / REPORT_FILE
    write_atomically(target, page(f"looprl ablation {folder.resolve().name}", sections))
    return target


_READING = (
    "<p>The interval is Student's t for the mean of the differences, paired by seed: the arms of a seed start from the "
    "same weights and see the same prompts. It speaks of other seeds, and with few seeds it is wide. Seconds are the "
    "median over a run's steps, the first left out; scoring counts every forward pass that scores, so also that of "
    "old log-probs where an arm needs one.</p>"
)
