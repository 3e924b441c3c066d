"""The gradient comparison as a figure: distance to full BPTT against K, one line per R, and the cost beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from looprl.measure.estimator_rows import Row

FLOOR = 1e-9  # of 1 - cosine, about what fp32 gradients can tell apart
_MARKERS = "osD^vPX"
_GREYS = ("black", "0.45", "0.65")


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the rows of `compare_gradients`: plain Neumann series as lines over K, `auto` at its mean products."""
    with matplotlib.rc_context({"font.size": 9, "axes.grid": True, "grid.color": "0.9", "legend.frameon": False}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        fidelity, cost = figure.subplots(1, 2)
        for index, num_loops in enumerate(dict.fromkeys(row["num_loops"] for row in rows)):
            at = [row for row in rows if row["num_loops"] == num_loops]
            style: dict[str, Any] = {"color": _GREYS[index % 3], "marker": _MARKERS[index % 7], "markersize": 4}
            for replay_from, dashes in (("penultimate", "-"), ("endpoint", ":")):
                label = f"reuse, {replay_from}, R = {num_loops}"
                shown = _reuse(at, replay_from)
                _line(fidelity, shown, _distance, label, style | {"linestyle": dashes})
                if replay_from == "penultimate":
                    _line(cost, shown, lambda row: row["seconds"], label, style | {"linestyle": dashes})
            squared = [row for row in at if row["adjoint_solver"] == "least_squares" and row["estimator"] == "reuse"]
            _line(fidelity, squared, _distance, f"least squares, R = {num_loops}", style | {"linestyle": "--"})
            full = next(row["seconds"] for row in at if row["estimator"] == "full")
            cost.axhline(full, color=style["color"], linestyle="-.", linewidth=1, label=f"full BPTT, R = {num_loops}")
        fidelity.set_yscale("log")
        fidelity.set_ylabel("1 - cosine to full BPTT")
        cost.set_ylabel("scoring + backward, seconds")
        cost.set_ylim(0, 1.5 * max(row["seconds"] for row in rows if row["estimator"] == "full"))
        for axes in (fidelity, cost):
            axes.set_xlabel("Neumann steps K (J^T products); stars: auto")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.legend(fontsize=7, handlelength=4)
    return figure


def write_figure(rows: Sequence[Row], path: Path) -> None:
    """Draw into a file; the suffix of `path` chooses the format."""
    draw(rows).savefig(path, dpi=150)


def _reuse(rows: Sequence[Row], replay_from: str) -> list[Row]:
    return [
        row
        for row in rows
        if (row["estimator"], row["replay_from"], row["adjoint_solver"]) == ("reuse", replay_from, "neumann")
    ]


def _distance(row: Row) -> float:
    cosine = row["cosine_to_full"]["all"]
    return max(1 - cosine, FLOOR) if cosine is not None else float("nan")


def _line(axes: Axes, rows: Sequence[Row], value: Any, label: str, style: dict[str, Any]) -> None:
    fixed = sorted((row for row in rows if row["neumann_steps"] != "auto"), key=lambda row: row["neumann_steps"])
    if fixed:
        axes.plot([row["neumann_steps"] for row in fixed], [value(row) for row in fixed], label=label, **style)
    for row in rows:
        if row["neumann_steps"] == "auto":
            axes.plot(row["products"], value(row), color=style["color"], marker="*", markersize=11, linestyle="none")
