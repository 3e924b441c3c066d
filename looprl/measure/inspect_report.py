"""What an inspection leaves behind: `inspect.json`, `inspect.png`, and both in `report.html`; and its tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from looprl.measure.cells import Cells
from looprl.measure.inspect_figure import inspect_figure
from looprl.measure.inspection import TOKEN_TOLERANCE, Inspection
from looprl.measure.page import configuration, figure, notes, page, section, shown
from looprl.measure.policy_gradient import ALL
from looprl.measure.report import REPORT_FILE
from looprl.measure.verdict import Verdict, rows_of
from looprl.runs import RunFolder, write_atomically


def write_inspection_report(
    folder: RunFolder, inspection: Inspection, verdict: Verdict, remarks: Sequence[str], settings: Mapping[str, Any]
) -> Path:
    """Write the measurements with the verdict, their figure and the report, and return the report's path.

    remarks: what the reader must know about the text, such as documents that were cut.
    """
    name = str(settings["model"])
    folder.write_json("inspect.json", {"model": name, "remarks": remarks, "verdict": verdict, **vars(inspection)})
    png = inspect_figure(inspection)
    assert png is not None
    (folder.path / "inspect.png").write_bytes(png)
    findings = "".join(f"<dt>{shown(item.question)}</dt><dd>{shown(item.answer)}</dd>" for item in verdict.findings)
    answers = " ".join(item.answer for item in verdict.findings)
    tables = loop_cells(inspection).as_html() + fidelity_cells(inspection).as_html()
    sections = [
        notes(remarks),
        section("Verdict", f"<dl>{findings}</dl><p>Train with <b>{shown(recipe_line(verdict))}</b></p>"),
        section("Figure", figure(png, answers, _CAPTION)),
        section("Numbers", tables + _READING),
        configuration(settings),
    ]
    target = folder.path / REPORT_FILE
    write_atomically(target, page(f"looprl inspect {name}", sections))
    return target


def loop_cells(inspection: Inspection) -> Cells:
    """A row for every loop."""
    rows: list[tuple[str, list[str]]] = []
    for row in inspection.loops:
        name = f"{row.loop} = R" if row.loop == inspection.num_loops else str(row.loop)
        converging = f"{100 * row.tokens_converging / inspection.tokens:.1f}"
        residual = (f"{value:.2g}" for value in (row.residual_mean, row.residual_median, row.residual_p90))
        rows.append((name, [*residual, converging, f"{row.angle:.2g}", f"{row.state_variance:.3g}", f"{row.nll:.4f}"]))
    never = f"{100 * inspection.tokens_not_converging / inspection.tokens:.1f}"
    rows.append(("never", ["", "", "", never, "", "", ""]))
    columns = ["residual", "median", "p90", "converge %", "angle °", "variance", "NLL"]
    return Cells(f"After each loop, {inspection.tokens} tokens", "loop", columns, rows)


def fidelity_cells(inspection: Inspection) -> Cells:
    """Cosine to full BPTT: a row for every K, a column for every estimator and state."""
    series = {
        f"{estimator}\n{start}": rows_of(inspection, estimator, start)
        for estimator, start in dict.fromkeys((row.estimator, row.replay_from) for row in inspection.reuse)
    }
    rows: list[tuple[str, list[str]]] = []
    for of_one_k in zip(*series.values(), strict=True):
        values = [row.cosine_to_full[ALL] for row in of_one_k]
        rows.append((str(of_one_k[0].neumann_steps), ["-" if v is None else f"{v:.5f}" for v in values]))
    rows.append(("gap", [f"{found[0].logprob_gap_mean:.2g}" for found in series.values()]))
    return Cells("Cosine to full BPTT by Neumann steps, and mean log-prob gap in nats", "K", list(series), rows)


def recipe_line(verdict: Verdict) -> str:
    """The recipe keys as one reads them in a recipe."""
    return ", ".join(f"{key}: {value}" for key, value in verdict.recipe.items())


_CAPTION = "Over the real tokens of the text, likelihoods over those after the prompts."
_READING = (
    "<p>The residual after loop r is |F(z_r) - z_r| / |z_r|; a token converges at the first loop from which on it "
    f"stays below {TOKEN_TOLERANCE}. The angle is between z_r and z_{{r+1}}; the variance of z_r is over tokens, "
    "averaged over components; NLL is the negative log-likelihood of the tokens after the prompts, in nats per token. "
    "Reuse replays states of cached decoding, recompute those of the full sequence; every document has a random "
    "advantage of +1 or -1. The gap is between the replay's log-probs and those of cached decoding.</p>"
)
