"""The figures of an ablation: learning curves, differences to the baseline, seconds by phase.

Each is None where there is nothing to draw.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from looprl.measure.ablation import ArmRow, Points
from looprl.measure.figures import (
    STEP_LABEL,
    drawn_as_png,
    new_figure,
    ordered_phases,
    phase_legend,
    phase_look,
)

_COLUMNS = 3
_SEED_MARKERS = "o^svDP"
_MOST_MARKED = 20


@drawn_as_png
def learning_curves(rows: Sequence[ArmRow], quantity: str, label: str) -> Figure | None:
    """A panel for each arm: every seed, their mean, and the baseline's mean behind it.

    quantity: `pass_rates` or `rewards` of the runs.
    """
    curves = {row.arm: [getattr(run, quantity) for run in row.runs if getattr(run, quantity)] for row in rows}
    shown = [row for row in rows if curves[row.arm]]
    if not shown:
        return None
    columns = min(_COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    figure, axes = new_figure(columns, 0.5 + 2.1 * lines, lines, sharex=True, sharey=True)
    baseline = _mean(curves[rows[0].baseline])
    seeds = sorted({run.seed for row in shown for run in row.runs})
    for panel, row in zip(axes, shown, strict=False):
        if row.arm != row.baseline and baseline:
            panel.plot(*zip(*baseline, strict=True), color="0.6", linewidth=3, label=f"mean of {row.baseline}")
        for run in row.runs:
            _draw_seed(panel, getattr(run, quantity), run.seed, seeds.index(run.seed))
        panel.plot(*zip(*_mean(curves[row.arm]), strict=True), color="0.0", linewidth=1.3, label="mean over seeds")
        panel.set_title(row.arm, loc="left", fontsize=9)
        panel.set_xlabel(STEP_LABEL)
        panel.tick_params(labelbottom=True)
    for panel in axes[len(shown) :]:
        panel.set_axis_off()
    for panel in axes[: len(shown) : columns]:
        panel.set_ylabel(label)
    if quantity == "pass_rates":
        axes[0].set_ylim(0, 1)
    named = {label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(len(named), 6))
    return figure


@drawn_as_png
def differences(rows: Sequence[ArmRow]) -> Figure | None:
    """Difference to the baseline in pass@1 after training: each seed's, their mean and its 95 % interval."""
    compared = [row for row in rows if row.difference is not None]
    if not compared:
        return None
    baseline = next(row for row in rows if row.arm == row.baseline)
    after = {run.seed: run.pass_at_1_after for run in baseline.runs}
    figure, (axes,) = new_figure(1, 1.1 + 0.45 * len(compared))
    for place, row in enumerate(compared):
        assert row.difference is not None
        first = place == 0
        if row.difference.interval is not None:
            low, high = row.difference.interval
            axes.plot([low, high], [place, place], color="0.0", marker="|", label="95 % interval" if first else None)
        axes.plot(
            row.difference.mean,
            place,
            color="0.0",
            marker="o",
            linestyle="",
            label="mean over seeds" if first else None,
        )
        pairs = [(run.pass_at_1_after, after.get(run.seed)) for run in row.runs]
        seeds = [mine - other for mine, other in pairs if mine is not None and other is not None]
        axes.plot(
            seeds, [place + 0.22] * len(seeds), color="0.45", marker="x", linestyle="", markersize=4,
            label="one seed" if first else None,
        )  # fmt: skip
    axes.axvline(0, color="0.0", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(compared)), [row.arm for row in compared])
    axes.set_ylim(len(compared) - 0.5, -0.5)
    axes.set_xlabel(f"pass@1 after training, difference to {baseline.arm}")
    axes.grid(False, axis="y")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@drawn_as_png
def seconds_by_phase(rows: Sequence[ArmRow]) -> Figure | None:
    """Seconds of a step by phase, stacked, a bar for each arm; means over steps and seeds."""
    shown = [row for row in rows if any(run.phases for run in row.runs)]
    if not shown:
        return None
    figure, (axes,) = new_figure(1, 1.5 + 0.4 * len(shown))
    left = [0.0] * len(shown)
    for index, phase in enumerate(ordered_phases(name for row in shown for run in row.runs for name in run.phases)):
        widths = [statistics.fmean(run.phases.get(phase, 0.0) for run in row.runs) for row in shown]
        axes.barh(range(len(shown)), widths, left=left, label=phase, **phase_look(index))
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        axes.text(total, place, f" {total:.2f} s", va="center", fontsize=8)
    axes.set_yticks(range(len(shown)), [row.arm for row in shown])
    axes.set_xlim(0, 1.12 * max(left))
    axes.set_xlabel("seconds per step")
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    phase_legend(figure, axes)
    return figure


def _draw_seed(axes: Axes, points: Points, seed: int, index: int) -> None:
    """One seed's curve: markers of its own where the points are few, otherwise a thin line."""
    if not points:
        return
    look: dict[str, Any] = dict(color="0.0", linewidth=0.7, linestyle=":", label="one seed")
    if len(points) <= _MOST_MARKED:
        marker = _SEED_MARKERS[index % len(_SEED_MARKERS)]
        look = dict(
            color="0.0", linestyle="", marker=marker, markersize=3.5, markerfacecolor="none", label=f"seed {seed}"
        )
    axes.plot(*zip(*points, strict=True), **look)


def _mean(curves: Sequence[Points]) -> Points:
    """The mean curve, at the steps that all curves have."""
    by_step = [dict(curve) for curve in curves]
    shared = set.intersection(*(set(curve) for curve in by_step)) if by_step else set()
    return [(step, statistics.fmean(curve[step] for curve in by_step)) for step in sorted(shared)]
