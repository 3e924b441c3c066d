"""The figures of a run's report, as SVG text: told apart by line, marker and hatching, so that print suffices.

Each figure takes the rows of `metrics.jsonl` or what was made of them, and is None where there is nothing to draw.
pyplot is never imported, and matplotlib's settings are put back; the same rows give the same text.
"""

import functools
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeGuard

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Rows = Sequence[Mapping[str, Any]]
Arguments = ParamSpec("Arguments")

STEP_LABEL = "optimizer step"
_TIME_PREFIX = "time/"
_PHASES = ("rollout", "reward", "scoring", "backward", "optimizer", "sync", "evaluation")
_FILLS = ("0.55", "1.0", "0.8", "0.35", "1.0", "0.9", "0.7", "1.0")
_HATCHES = ("", "////", "....", "", "xxxx", "\\\\\\\\", "----", "oo")
_MEAN_OVER = 10
_MOST_MARKED = 40
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "looprl",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "hatch.linewidth": 0.5,
    "axes.grid": True,
    "grid.color": "0.85",
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class Rate:
    """pass@1 after `step` optimizer steps, with its 95 % interval (None where n is unknown)."""

    step: int
    value: float
    interval: tuple[float, float] | None


def wilson_interval(rate: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n independent trials (Wilson, 1927)."""
    z = 1.959964
    centre, scale = rate + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max((centre - half) / scale, 0.0), min((centre + half) / scale, 1.0)


def series(rows: Rows, key: str) -> tuple[list[int], list[float]]:
    """The steps at which a metric has a finite value, and the values."""
    found = [(row.get("step"), row.get(key)) for row in rows]
    kept = [(step, float(value)) for step, value in found if isinstance(step, int) and _is_number(value)]
    return [step for step, _ in kept], [value for _, value in kept]


def _drawn_as_svg(draw: Callable[Arguments, Figure | None]) -> Callable[Arguments, str | None]:
    """Have a figure drawn in the report's style, and turn it into SVG text."""

    @functools.wraps(draw)
    def drawn(*args: Arguments.args, **kwargs: Arguments.kwargs) -> str | None:
        with matplotlib.rc_context(_SETTINGS):
            figure = draw(*args, **kwargs)
            if figure is None:
                return None
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        return text.getvalue()

    return drawn


@_drawn_as_svg
def reward_curve(rows: Rows) -> Figure | None:
    """Mean reward by step, with a running mean when there are enough steps."""
    steps, values = series(rows, "reward")
    if not steps:
        return None
    figure, (axes,) = _figure(1)
    smooth = len(steps) >= 2 * _MEAN_OVER
    _line(axes, steps, values, "mean of the step's completions", "0.55" if smooth else "0.0", "-", "o")
    if smooth:
        means = [sum(values[i - _MEAN_OVER : i]) / _MEAN_OVER for i in range(_MEAN_OVER, len(values) + 1)]
        axes.plot(steps[_MEAN_OVER - 1 :], means, color="0.0", linewidth=2, label=f"mean of the last {_MEAN_OVER} logs")
    _finish(axes, "reward")
    return figure


@_drawn_as_svg
def pass_rate_curve(rates: Sequence[Rate]) -> Figure | None:
    """pass@1 on the held-out prompts by step, with 95 % intervals."""
    if not rates:
        return None
    figure, (axes,) = _figure(1)
    _line(axes, [rate.step for rate in rates], [rate.value for rate in rates], "pass@1", "0.0", "-", "o")
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


@_drawn_as_svg
def phase_times(rows: Rows, totals: Mapping[str, float]) -> Figure | None:
    """Seconds by phase: stacked for each step, and the totals with their shares."""
    everything = sum(totals.values())
    stepped = [row for row in rows if isinstance(row.get("step"), int)]
    if not stepped or everything <= 0:
        return None
    phases = [name for name in _PHASES if name in totals] + sorted(set(totals) - set(_PHASES))
    figure, (by_step, total) = _figure(2, height=3.4)
    edges = [stepped[0]["step"] - 0.5, *(row["step"] + 0.5 for row in stepped)]
    below = [0.0] * len(stepped)
    for index, phase in enumerate(phases):
        seconds = [row.get(_TIME_PREFIX + phase) for row in stepped]
        above = [low + (value if _is_number(value) else 0.0) for low, value in zip(below, seconds, strict=True)]
        look: dict[str, Any] = dict(
            facecolor=_FILLS[index % len(_FILLS)], hatch=_HATCHES[index % len(_HATCHES)], edgecolor="0.0", linewidth=0.5
        )
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
    by_step.set_xlabel(STEP_LABEL)
    by_step.set_ylabel("seconds per step")
    by_step.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = by_step.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, handlelength=2.5, handleheight=1.2)
    return figure


@_drawn_as_svg
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
    figure, all_axes = _figure(len(panels))
    for axes, (lines, label) in zip(all_axes, panels, strict=True):
        for key, name, style, marker in lines:
            _line(axes, *_positive(rows, key), name, "0.0", style, marker)
        axes.set_yscale("log")
        _finish(axes, label)
    return figure


@_drawn_as_svg
def completion_lengths(rows: Rows, limit: int | None) -> Figure | None:
    """Completion length by step: mean, shortest, longest, and the limit."""
    if not series(rows, "completions/mean_length")[0]:
        return None
    figure, (axes,) = _figure(1)
    for key, name, style, marker in (
        ("completions/max_length", "longest", ":", "^"),
        ("completions/mean_length", "mean", "-", "o"),
        ("completions/min_length", "shortest", ":", "v"),
    ):
        _line(axes, *series(rows, key), name, "0.0", style, marker)
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


def _figure(panels: int, height: float = 2.8) -> tuple[Figure, Iterable[Axes]]:
    figure = Figure(figsize=(7.4, height), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _line(
    axes: Axes, steps: Sequence[int], values: Sequence[float], label: str, color: str, style: str, marker: str
) -> None:
    if steps:
        every = max(len(steps) // _MOST_MARKED, 1)
        axes.plot(
            steps, values, color=color, linestyle=style, marker=marker, markevery=every, markersize=3.5,
            linewidth=1.2, label=label,
        )  # fmt: skip


def _finish(axes: Axes, label: str) -> None:
    axes.set_xlabel(STEP_LABEL)
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")
