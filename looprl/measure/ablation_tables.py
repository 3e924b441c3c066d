"""The tables of an ablation, as cells: the terminal and the report show the same ones."""

from collections.abc import Sequence

from looprl.measure.ablation import ArmRow
from looprl.measure.cells import Cells
from looprl.measure.paired import Difference, Spread
from looprl.measure.summary import rate


def quality_cells(rows: Sequence[ArmRow]) -> Cells:
    """pass@1 before and after training, and the difference to the baseline."""
    title = f"pass@1 on {_counts(rows, 'n')} held-out prompts: mean ± standard deviation over {_seeds(rows)}"
    return _rates(title, rows, "")


def transfer_cells(rows: Sequence[ArmRow]) -> Cells | None:
    """The same on the second task; None where there is none."""
    if all(row.transfer_pass_at_1_after is None for row in rows):
        return None
    title = f"transfer: pass@1 on {_counts(rows, 'transfer_n')} prompts of a task that was not trained on"
    return _rates(title, rows, "transfer_")


def cost_cells(rows: Sequence[ArmRow]) -> Cells:
    """Seconds of scoring + backward per update, and the speed-up over the baseline."""
    return Cells(
        "cost of an update",
        "arm",
        ["scoring + backward (s)", "speed-up"],
        [(row.arm, [_spread(row.seconds), "-" if row.speedup is None else f"{row.speedup:.2f} x"]) for row in rows],
    )


def run_cells(rows: Sequence[ArmRow]) -> Cells:
    """Every run by itself."""
    return Cells(
        "every run",
        "run",
        ["before", "after", "transfer before", "transfer after", "s per update"],
        [
            (
                f"{row.arm}, seed {run.seed}",
                [
                    rate(run.pass_at_1_before),
                    rate(run.pass_at_1_after),
                    rate(run.transfer_pass_at_1_before),
                    rate(run.transfer_pass_at_1_after),
                    "-" if run.update_seconds is None else f"{run.update_seconds:.3f}",
                ],
            )
            for row in rows
            for run in row.runs
        ],
    )


def _rates(title: str, rows: Sequence[ArmRow], prefix: str) -> Cells:
    cells = [
        [
            _spread(getattr(row, f"{prefix}pass_at_1_before")),
            _spread(getattr(row, f"{prefix}pass_at_1_after")),
            _difference(getattr(row, f"{prefix}difference")),
        ]
        for row in rows
    ]
    columns = ["before", "after", f"after - {rows[0].baseline}'s, 95 % interval"]
    return Cells(title, "arm", columns, [(row.arm, of_row) for row, of_row in zip(rows, cells, strict=True)])


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.mean:.3f}" + (f" ± {spread.deviation:.3f}" if spread.deviation is not None else "")


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    if difference.interval is None:
        return f"{difference.mean:+.3f}"
    low, high = difference.interval
    return f"{difference.mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def _counts(rows: Sequence[ArmRow], name: str) -> str:
    return " or ".join(map(str, sorted({getattr(run, name) for row in rows for run in row.runs}))) or "0"


def _seeds(rows: Sequence[ArmRow]) -> str:
    counts = sorted({len(row.runs) for row in rows})
    return " or ".join(map(str, counts)) + (" seed" if counts == [1] else " seeds")
