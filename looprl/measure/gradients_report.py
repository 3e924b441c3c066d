"""What `looprl gradients` leaves behind: `gradients.json`, `gradients.png`, and both in `report.html`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from looprl.measure.cells import Cells
from looprl.measure.estimator_rows import Row, estimator_name
from looprl.measure.gradients_figure import gradients_figure
from looprl.measure.page import configuration, figure, page, section, shown
from looprl.measure.report import REPORT_FILE
from looprl.runs import RunFolder, write_atomically

LEGEND = """\
cosine, core    to full BPTT: of the whole gradient, of the core's parameters
state           1 - cosine of reuse to recompute: what the reused state costs
series          1 - cosine of recompute to full BPTT: what the short series costs
norm            over full BPTT's
gap             largest |log-prob - sampler's|, nats
speed           of scoring + backward, over full BPTT's
rltt            another objective: the log-probs of every loop, weighted
reuse, endpoint replay from the penultimate state, from the endpoint
LS, K=auto n    least-squares coefficients; each sequence its own K, n on average"""


def write_gradients_report(folder: Path, rows: Sequence[Row], settings: Mapping[str, Any]) -> Path:
    """Write the rows of `compare_gradients`, their figure and the report, and return the report's path."""
    RunFolder(folder).write_json("gradients.json", list(rows))
    png = gradients_figure(rows)
    assert png is not None
    (folder / "gradients.png").write_bytes(png)
    tables = gradients_cells(rows)
    closest = "; ".join(f"{cells.title}: {cells.in_words(0)}" for cells in tables)
    caption = "1 - cosine to full BPTT and seconds of scoring + backward, against the number of J^T products."
    sections = [
        section("Fidelity and cost", figure(png, f"Cosines to full BPTT. {closest}", caption)),
        section("Every estimator", "".join(cells.as_html() for cells in tables) + f"<pre>{shown(LEGEND)}</pre>"),
        configuration(settings),
    ]
    target = folder / REPORT_FILE
    write_atomically(target, page(f"looprl gradients {folder.resolve().name}", sections))
    return target


def gradients_cells(rows: Sequence[Row]) -> list[Cells]:
    """A table for each number of loops; every `reuse` with what its `recompute` tells. See `LEGEND`."""
    return [
        _cells([row for row in rows if row["num_loops"] == num_loops])
        for num_loops in dict.fromkeys(row["num_loops"] for row in rows)
    ]


def _cells(rows: Sequence[Row]) -> Cells:
    lines = []
    recomputed: Row = {}
    for row in rows:
        if row["estimator"] == "recompute":
            recomputed = row
            continue
        reuse = row["estimator"] == "reuse"
        lines.append(
            (
                estimator_name(row) + (f" {row['products']:.1f}" if row["neumann_steps"] == "auto" else ""),
                [
                    _cosine(row["cosine_to_full"]["all"], 6),
                    _cosine(row["cosine_to_full"].get("core"), 5),
                    _shortfall(row["cosine_to_recompute"]["all"]) if reuse else "",
                    _shortfall(recomputed["cosine_to_full"]["all"]) if reuse else "",
                    "-" if row["norm_ratio"] is None else f"{row['norm_ratio']:.3f}",
                    f"{row['logprob_gap_max']:.0e}",
                    f"{row['speedup_vs_full']:.2f}",
                    f"{row['peak_bytes'] / 2**20:.0f}",
                ],
            )
        )
    columns = ["cosine", "core", "state", "series", "norm", "gap", "speed", "MiB"]
    title = f"R = {rows[0]['num_loops']}: policy gradients beside full BPTT ({rows[0]['shape']})"
    return Cells(title, "gradient", columns, lines)


def _cosine(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _shortfall(cosine: float | None) -> str:
    return "-" if cosine is None else f"{max(1 - cosine, 0):.0e}"
