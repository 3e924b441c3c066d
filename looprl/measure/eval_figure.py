"""An evaluation as a figure: avg@k, pass@k and majority@k against the number of loops, a panel for each task."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from looprl.measure.figures import drawn_as_png, new_figure

# key, key of its interval, label, looks
_CURVES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("avg_at_k", "ci95", "avg@{k} (pass@1)", dict(color="black", linestyle="-", marker="o")),
    ("majority_at_k", "majority_at_k_ci95", "majority@{k}", dict(color="0.45", linestyle="--", marker="D")),
    ("pass_at_k", "pass_at_k_ci95", "pass@{k}", dict(color="0.45", linestyle=":", marker="s")),
)


@drawn_as_png
def eval_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the rows of `eval.json`, with their intervals over problems; what was not measured is left out.

    So are those with early exit, which are at no depth.
    """
    return draw([row for row in rows if row.get("exit_threshold") is None])


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """The figure itself."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, panels = new_figure(len(tasks), height=3.2, sharey=True)
    for axes, task in zip(panels, tasks, strict=True):
        _panel(axes, sorted((row for row in rows if row["task"] == task), key=lambda row: row["num_loops"]))
        axes.set_title(task)
    panels[0].set_ylabel("share of held-out prompts")
    return figure


def _panel(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    k = rows[0]["k"]
    for key, interval, label, looks in _CURVES:
        measured = [row for row in rows if row[key] is not None]
        if not measured or (k == 1 and key != "avg_at_k"):
            continue
        values = [row[key] for row in measured]
        bounds = [row[interval] or (row[key], row[key]) for row in measured]
        below = [value - low for value, (low, _) in zip(values, bounds, strict=True)]
        above = [high - value for value, (_, high) in zip(values, bounds, strict=True)]
        axes.errorbar(
            [row["num_loops"] for row in measured], values, yerr=(below, above), capsize=2.5, markersize=4,
            linewidth=1.2, label=label.format(k=k), **looks,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    loops = [row["num_loops"] for row in rows]
    axes.set_xticks(loops, [str(number) for number in loops])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("loops R")
    axes.set_ylim(0, 1.03)
    axes.legend()
