"""The gradient comparison as a figure: distance to full BPTT against K, one line per R, and the cost beside it."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from looprl.measure.estimator_rows import Row
from looprl.measure.figures import SMALLEST_SHORTFALL, drawn_as_png, new_figure

_MARKERS = "osD^vPX"
_GREYS = ("0.0", "0.35", "0.5", "0.6", "0.7")


@drawn_as_png
def gradients_figure(rows: Sequence[Row]) -> Figure:
    """Draw the rows of `compare_gradients`: plain Neumann series as lines over K, `auto` at its mean products."""
    return draw(rows)


def draw(rows: Sequence[Row]) -> Figure:
    """The figure itself."""
    figure, (fidelity, cost) = new_figure(2, height=3.4)
    for index, num_loops in enumerate(dict.fromkeys(row["num_loops"] for row in rows)):
        at = [row for row in rows if row["num_loops"] == num_loops]
        style = dict(color=_GREYS[index % 5], marker=_MARKERS[index % 7], markersize=4, linewidth=1.2)
        _line(fidelity, _reuse(at, "penultimate"), _distance, f"reuse, R = {num_loops}", style)
        _line(fidelity, _reuse(at, "endpoint"), _distance, f"endpoint, R = {num_loops}", {**style, "linestyle": ":"})
        squares = _reuse(at, "penultimate", "least_squares")
        _line(fidelity, squares, _distance, f"least squares, R = {num_loops}", {**style, "linestyle": "--"})
        _line(cost, _reuse(at, "penultimate"), _seconds, f"reuse, R = {num_loops}", style)
        full = next(row["seconds"] for row in at if row["estimator"] == "full")
        cost.axhline(full, color=style["color"], linestyle="-.", linewidth=1, label=f"full BPTT, R = {num_loops}")
    fidelity.set_yscale("log")
    fidelity.set_ylabel("1 - cosine to full BPTT")
    cost.set_ylabel("scoring + backward (s)")
    cost.set_ylim(bottom=0)
    for axes in (fidelity, cost):
        axes.set_xlabel("Neumann steps K (stars: auto, mean)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=7, handlelength=4, ncols=2)
    return figure


def _reuse(rows: Sequence[Row], replay_from: str, solver: str = "neumann") -> list[Row]:
    kind = ("reuse", replay_from, solver)
    return [row for row in rows if (row["estimator"], row["replay_from"], row["adjoint_solver"]) == kind]


def _distance(row: Row) -> float:
    cosine = row["cosine_to_full"]["all"]
    return max(1 - cosine, SMALLEST_SHORTFALL) if cosine is not None else float("nan")


def _seconds(row: Row) -> float:
    return row["seconds"]


def _line(axes: Axes, rows: Sequence[Row], value: Callable[[Row], float], label: str, style: dict[str, Any]) -> None:
    fixed = sorted((row for row in rows if row["neumann_steps"] != "auto"), key=lambda row: row["neumann_steps"])
    if fixed:
        axes.plot([row["neumann_steps"] for row in fixed], [value(row) for row in fixed], label=label, **style)
    for row in rows:
        if row["neumann_steps"] == "auto":
            star = {"color": style["color"], "marker": "*", "markersize": 11, "linestyle": "none"}
            axes.plot(row["products"], value(row), label=None if fixed else f"{label}, auto", **star)
