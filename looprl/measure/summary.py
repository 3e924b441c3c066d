"""What a run prints at its end: pass@1 before and after, where the time went, samples, and the run folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from looprl.data.prompts import prompt_text

SAMPLES_SHOWN = 3
_MOST_CHARACTERS = 600
_TIME_PREFIX = "time/"


def phase_seconds(metrics_rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the total seconds of each `time/*` phase, the longest first."""
    totals: dict[str, float] = {}
    for row in metrics_rows:
        for name, seconds in row.items():
            if name.startswith(_TIME_PREFIX) and seconds is not None:
                phase = name.removeprefix(_TIME_PREFIX)
                totals[phase] = totals.get(phase, 0.0) + seconds
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def time_table(metrics_rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with the total seconds of each `time/*` phase and its share of all of them."""
    phases = phase_seconds(metrics_rows)
    everything = sum(phases.values())
    table = Table(box=box.ASCII2, title="where the time went", title_justify="left", title_style="")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for phase, seconds in phases.items():
        table.add_row(_text(phase), f"{seconds:.1f}", f"{seconds / everything:.0%}" if everything else "-")
    return table


def print_summary(
    console: Console,
    summary: Mapping[str, Any],
    metrics_rows: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
    run_folder: str | Path,
) -> None:
    """Print the end of a run.

    `summary` has `pass_at_1_before`, `pass_at_1_after` (None where not measured), `n`, `steps` and `seconds`, and
    where there is a second task the first three with the prefix `transfer_`; each sample has `prompt`, `answer`
    (left out where None), `before` and `after`, and three are shown.
    """
    before, after = summary["pass_at_1_before"], summary["pass_at_1_after"]
    console.print()
    if before is None and after is None:
        console.print(Text("pass@1 was not measured"))
    else:
        console.print(Text(f"pass@1 {rate(before)} -> {rate(after)} on {summary['n']} held-out prompts"))
    if "transfer_n" in summary:
        was, now = summary["transfer_pass_at_1_before"], summary["transfer_pass_at_1_after"]
        console.print(Text(f"pass@1 {rate(was)} -> {rate(now)} on {summary['transfer_n']} transfer prompts"))
    console.print(Text(f"{summary['steps']} steps in {summary['seconds']:.0f} s"))
    if phase_seconds(metrics_rows):
        console.print()
        console.print(time_table(metrics_rows))
    for number, sample in enumerate(samples[:SAMPLES_SHOWN], start=1):
        console.print()
        console.print(_text(f"sample {number}: {prompt_text(sample['prompt']).strip()}"))
        if sample.get("answer") is not None:
            console.print(_text(f"answer: {sample['answer']}"))
        console.print(_side_by_side(sample["before"], sample["after"]))
    console.print()
    # Not wrapped, so that the path can be copied whatever the width.
    console.print(Text(f"run folder: {run_folder}"), soft_wrap=True)


def rate(value: float | None) -> str:
    """A pass rate to three digits, or that there is none."""
    return "not measured" if value is None else f"{value:.3f}"


def _side_by_side(before: str, after: str) -> Table:
    table = Table(box=box.ASCII2, expand=True)
    table.add_column("before", ratio=1, overflow="fold")
    table.add_column("after", ratio=1, overflow="fold")
    table.add_row(_text(before.strip()), _text(after.strip()))
    return table


def _text(text: str) -> Text:
    """Return sampled text as it is: brackets are no markup, and control characters are spelled out."""
    shortened = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
    return Text("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in shortened))
