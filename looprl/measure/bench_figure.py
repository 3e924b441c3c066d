"""The bench as a figure: seconds and peak memory by estimator, one panel per shape and number of loops."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from looprl.measure.estimator_rows import estimator_name


def write_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the rows of `bench_updates`; the suffix of `path` chooses the format."""
    panels = list(dict.fromkeys((row["shape"], row["num_loops"]) for row in rows))
    figure = Figure(figsize=(9, 2.4 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for (time_axis, memory_axis), (shape, num_loops) in zip(axes, panels, strict=True):
        shown = [row for row in rows if (row["shape"], row["num_loops"]) == (shape, num_loops)]
        names = [estimator_name(row) for row in shown]
        seconds = [row["seconds"] for row in shown]
        spread = [
            [value - row["seconds_range"][0] for value, row in zip(seconds, shown, strict=True)],
            [row["seconds_range"][1] - value for value, row in zip(seconds, shown, strict=True)],
        ]
        time_axis.barh(names, seconds, xerr=spread, color="0.6", edgecolor="black", capsize=2)
        memory_axis.barh(names, [row["peak_bytes"] / 2**20 for row in shown], color="0.85", edgecolor="black")
        time_axis.set_title(f"{shape}, R = {num_loops}", loc="left", fontsize=10)
        time_axis.set_xlabel("scoring + backward, seconds (median, range)")
        memory_axis.set_xlabel("peak memory, MiB")
        memory_axis.tick_params(labelleft=False)
        for axis in (time_axis, memory_axis):
            axis.invert_yaxis()
            axis.grid(axis="x", color="0.9")
            axis.set_axisbelow(True)
    figure.savefig(path, dpi=150)
