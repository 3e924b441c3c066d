"""The figures of a run's report. Each takes the rows of `metrics.jsonl` or what was made of them.

Each is None where there is nothing to draw.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from looprl.measure.figures import (
    SMALLEST_SHORTFALL,
    drawn_as_png,
    label_steps,
    line,
    new_figure,
    ordered_phases,
    phase_legend,
    phase_look,
)

Rows = Sequence[Mapping[str, Any]]

_TIME_PREFIX = "time/"
_MEAN_OVER = 10


@dataclass(frozen=True)
class Rate:
    """pass@1 after `step` optimizer steps, with its 95 % interval (None where n is unknown)."""

    step: int
    value: float
    interval: tuple[float, float] | None


def series(rows: Rows, key: str) -> tuple[list[int], list[float]]:
    """The steps at which a metric has a finite value, and the values."""
    found = [(row.get("step"), row.get(key)) for row in rows]
    kept = [(step, float(value)) for step, value in found if isinstance(step, int) and _is_number(value)]
    return [step for step, _ in kept], [value for _, value in kept]


@drawn_as_png
def reward_curve(rows: Rows) -> Figure | None:
    """Mean reward by step, with a running mean when there are enough steps."""
    steps, values = series(rows, "reward")
    if not steps:
        return None
    figure, (axes,) = new_figure(1)
    smooth = len(steps) >= 2 * _MEAN_OVER
    line(axes, steps, values, "mean of the step's completions", "0.55" if smooth else "0.0", "-", "o")
    if smooth:
        means = [sum(values[i - _MEAN_OVER : i]) / _MEAN_OVER for i in range(_MEAN_OVER, len(values) + 1)]
        axes.plot(steps[_MEAN_OVER - 1 :], means, color="0.0", linewidth=2, label=f"mean of the last {_MEAN_OVER} logs")
    _finish(axes, "reward")
    return figure


@drawn_as_png
def pass_rate_curve(rates: Sequence[Rate]) -> Figure | None:
    """pass@1 on the held-out prompts by step, with 95 % intervals."""
    if not rates:
        return None
    figure, (axes,) = new_figure(1)
    line(axes, [rate.step for rate in rates], [rate.value for rate in rates], "pass@1", "0.0", "-", "o")
    known = [(rate.step, rate.value, rate.interval) for rate in rates if rate.interval is not None]
    if known:
        below = [value - low for _, value, (low, _) in known]
        above = [high - value for _, value, (_, high) in known]
        axes.errorbar(
            [step for step, _, _ in known], [value for _, value, _ in known], yerr=[below, above],
            fmt="none", ecolor="0.0", capsize=3, linewidth=0.8, label="95 % interval (Wilson)",
        )  # fmt: skip
    axes.set_ylim(0, 1)
    _finish(axes, "pass@1 (share of prompts)")
    return figure


@drawn_as_png
def phase_times(rows: Rows, totals: Mapping[str, float]) -> Figure | None:
    """Seconds by phase: stacked for each step, and the totals with their shares."""
    everything = sum(totals.values())
    stepped = [row for row in rows if isinstance(row.get("step"), int)]
    if not stepped or everything <= 0:
        return None
    phases = ordered_phases(totals)
    figure, (by_step, total) = new_figure(2, height=3.4)
    edges = [stepped[0]["step"] - 0.5, *(row["step"] + 0.5 for row in stepped)]
    below = [0.0] * len(stepped)
    for index, phase in enumerate(phases):
        seconds = [row.get(_TIME_PREFIX + phase) for row in stepped]
        above = [low + (value if _is_number(value) else 0.0) for low, value in zip(below, seconds, strict=True)]
        look = phase_look(index)
        by_step.stairs(above, edges, baseline=below, fill=True, label=phase, **look)
        total.barh(index, totals[phase], **look)
        share = f" {totals[phase]:.1f} s, {totals[phase] / everything:.0%}"
        total.text(totals[phase], index, share, va="center", fontsize=8)
        below = above
    total.set_yticks(range(len(phases)), phases)
    total.set_xlim(0, 1.45 * max(totals.values()))
    total.set_xlabel("seconds in all")
    total.grid(False, axis="y")
    total.invert_yaxis()
    by_step.set_ylim(bottom=0)
    label_steps(by_step, "seconds per step")
    phase_legend(figure, by_step)
    return figure


@drawn_as_png
def replay_gap(rows: Rows) -> Figure | None:
    """How far replay and sampler disagree, and how far the replayed loop still moves the state; log axes."""
    gaps = [("replay/logprob_gap_max", "largest", ":", "^"), ("replay/logprob_gap_mean", "mean", "-", "o")]
    residual = [("replay/residual", "mean", "-", "o")]
    panels = [
        (gaps, "|replay - sampler log-prob| (nats)"),
        (residual, "residual |z+ - z| / |z+| (relative)"),
    ]
    panels = [(lines, label) for lines, label in panels if any(_positive(rows, key)[0] for key, *_ in lines)]
    if not panels:
        return None
    figure, all_axes = new_figure(len(panels))
    for axes, (lines, label) in zip(all_axes, panels, strict=True):
        for key, name, style, marker in lines:
            line(axes, *_positive(rows, key), name, "0.0", style, marker)
        axes.set_yscale("log")
        _finish(axes, label)
    return figure


@drawn_as_png
def control(rows: Rows) -> Figure | None:
    """How far the gradient is from full BPTT's at each control, and what the adjoint's series shows; None without."""
    distances = [
        ("control/cosine_to_full", "this run's", "-", "o"),
        ("control/recompute_to_full", "recompute's", ":", "^"),
    ]
    shown = [(name, style, marker, *_shortfalls(rows, key)) for key, name, style, marker in distances]
    if not any(steps for *_, steps, _ in shown):
        return None
    terms = [
        ("replay/spectral_estimate", "last ratio of terms", "-", "o"),
        ("replay/neumann_remainder", "last term / adjoint", ":", "^"),
    ]
    has_series = any(series(rows, key)[0] for key, *_ in terms)
    figure, all_axes = new_figure(1 + has_series)
    for name, style, marker, steps, values in shown:
        line(all_axes[0], steps, values, name, "0.0", style, marker)
    all_axes[0].set_yscale("log")
    _finish(all_axes[0], "1 - cosine to full BPTT")
    if has_series:
        for key, name, style, marker in terms:
            line(all_axes[1], *series(rows, key), name, "0.0", style, marker)
        _finish(all_axes[1], "Neumann series (mean over sequences)")
    return figure


def _shortfalls(rows: Rows, key: str) -> tuple[list[int], list[float]]:
    steps, cosines = series(rows, key)
    return steps, [max(1 - cosine, SMALLEST_SHORTFALL) for cosine in cosines]


@drawn_as_png
def completion_lengths(rows: Rows, limit: int | None) -> Figure | None:
    """Completion length by step: mean, shortest, longest, and the limit."""
    if not series(rows, "completions/mean_length")[0]:
        return None
    figure, (axes,) = new_figure(1)
    for key, name, style, marker in (
        ("completions/max_length", "longest", ":", "^"),
        ("completions/mean_length", "mean", "-", "o"),
        ("completions/min_length", "shortest", ":", "v"),
    ):
        line(axes, *series(rows, key), name, "0.0", style, marker)
    if limit is not None:
        axes.axhline(limit, color="0.0", linestyle="--", linewidth=0.8, label=f"limit ({limit})")
    axes.set_ylim(bottom=0)
    _finish(axes, "completion length (tokens)")
    return figure


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _positive(rows: Rows, key: str) -> tuple[list[int], list[float]]:
    kept = [(step, value) for step, value in zip(*series(rows, key), strict=True) if value > 0]
    return [step for step, _ in kept], [value for _, value in kept]


def _finish(axes: Axes, label: str) -> None:
    label_steps(axes, label)
    axes.legend(loc="best")
