"""How every figure of a report is drawn: as PNG, told apart by line, marker and hatching, so that print suffices.

pyplot is never imported, and matplotlib's settings are put back; the same input gives the same bytes.
"""

import functools
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Arguments = ParamSpec("Arguments")

WIDTH = 7.4  # inches, the text of a printed page
STEP_LABEL = "optimizer step"
SMALLEST_SHORTFALL = 1e-9  # of 1 - cosine, about what fp32 gradients can tell apart
_PHASES = ("rollout", "reward", "scoring", "backward", "optimizer", "sync", "evaluation", "control")
_FILLS = ("0.55", "1.0", "0.8", "0.35", "1.0", "0.9", "0.7", "1.0", "0.95")
_HATCHES = ("", "////", "....", "", "xxxx", "\\\\\\\\", "----", "oo", "++")
_MOST_MARKED = 40
_SETTINGS: dict[Any, Any] = {
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "hatch.linewidth": 0.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.85",
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def drawn_as_png(draw: Callable[Arguments, Figure | None]) -> Callable[Arguments, bytes | None]:
    """Have a figure drawn in the reports' style, and turn it into a PNG file's bytes; None stays None."""

    @functools.wraps(draw)
    def drawn(*args: Arguments.args, **kwargs: Arguments.kwargs) -> bytes | None:
        with matplotlib.rc_context(_SETTINGS):
            figure = draw(*args, **kwargs)
            if figure is None:
                return None
            content = io.BytesIO()
            figure.savefig(content, format="png", metadata={"Software": None})
        return content.getvalue()

    return drawn


def new_figure(columns: int, height: float = 2.8, rows: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with its axes, row by row; shared: `sharex`, `sharey`."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def line(
    axes: Axes, steps: Sequence[int], values: Sequence[float], label: str, color: str, style: str, marker: str
) -> None:
    """A line with a marker at each of at most 40 points; nothing where there are no points."""
    if steps:
        every = max(len(steps) // _MOST_MARKED, 1)
        axes.plot(
            steps, values, color=color, linestyle=style, marker=marker, markevery=every, markersize=3.5,
            linewidth=1.2, label=label,
        )  # fmt: skip


def label_steps(axes: Axes, label: str) -> None:
    """Name both axes of a curve over optimizer steps."""
    axes.set_xlabel(STEP_LABEL)
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def ordered_phases(phases: Iterable[str]) -> list[str]:
    """The phases in the order of a step, unknown ones last."""
    known = set(phases)
    return [name for name in _PHASES if name in known] + sorted(known - set(_PHASES))


def phase_look(index: int) -> Mapping[str, Any]:
    """Fill and hatching of the phase at this place of `ordered_phases`."""
    fill, hatch = _FILLS[index % len(_FILLS)], _HATCHES[index % len(_HATCHES)]
    return dict(facecolor=fill, hatch=hatch, edgecolor="0.0", linewidth=0.5)


def phase_legend(figure: Figure, axes: Axes) -> None:
    """The legend of the phases, below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, handlelength=2.5, handleheight=1.2)
