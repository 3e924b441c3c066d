"""What `looprl eval` leaves behind: `problems.jsonl`, `eval.json`, `eval.png`, and all in `report.html`."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from looprl.measure.cells import Cells
from looprl.measure.eval_figure import eval_figure
from looprl.measure.eval_rows import Row, summary_row
from looprl.measure.exit_gate import with_depths
from looprl.measure.page import configuration, figure, notes, page, section, shown
from looprl.measure.report import REPORT_FILE
from looprl.measure.summary import rate
from looprl.runs import RunFolder, plain, write_atomically


def write_eval(folder: Path, problems: Sequence[Row], k: int, settings: Mapping[str, Any]) -> list[Row]:
    """Write everything that follows from the problems' rows, and return the rows of `eval.json`.

    problems: those of each task, number of loops and threshold of early exit stand together.
    """
    rows = with_depths([summary_row(list(group), k) for _, group in groupby(problems, key=_depth)])
    lines = [json.dumps(plain(problem), ensure_ascii=False) + "\n" for problem in problems]
    write_atomically(folder / "problems.jsonl", "".join(lines))
    RunFolder(folder).write_json("eval.json", rows)
    png = eval_figure(rows)
    assert png is not None
    (folder / "eval.png").write_bytes(png)
    tables = eval_cells(rows)
    in_words = "; ".join(f"{cells.title}: {cells.in_words(0)}" for cells in tables)
    caption = f"Share of right answers on held-out prompts against the number of loops; bars: {_INTERVAL}."
    sections = [
        notes(eval_notes(rows)),
        section("Pass rates at each depth", figure(png, f"avg@{k} by number of loops. {in_words}", caption)),
        section("In numbers", "".join(cells.as_html() for cells in tables) + f"<pre>{shown(_legend(k))}</pre>"),
        configuration(settings),
    ]
    if gate := exit_cells(rows):
        of_gate = "".join(cells.as_html() for cells in gate) + f"<pre>{shown(_EXIT_LEGEND)}</pre>"
        sections.insert(-1, section("Exit gate", of_gate))
    write_atomically(folder / REPORT_FILE, page(f"looprl eval {folder.resolve().name}", sections))
    return rows


def _depth(row: Row) -> tuple[Any, ...]:
    return row["task"], row["num_loops"], row.get("exit_threshold")


def _shown_depth(row: Row) -> str:
    return f"R = {row['num_loops']}" + (f", q = {q:g}" if (q := row.get("exit_threshold")) is not None else "")


def eval_cells(rows: Sequence[Row]) -> list[Cells]:
    """A table for each task, a line for each number of loops and threshold of early exit."""
    tables = []
    for task in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == task]
        k = of_task[0]["k"]
        more = [j for j in of_task[0]["pass_at"] if j > 1]
        columns = [f"avg@{k}", "95 %", *(f"pass@{j}" for j in more), f"majority@{k}", "tokens", "cut off"]
        lines = [
            (
                _shown_depth(row),
                [
                    rate(row["avg_at_k"]),
                    _interval(row["ci95"]),
                    *(rate(row["pass_at"][j]) for j in more),
                    "-" if row["majority_at_k"] is None else rate(row["majority_at_k"]),
                    f"{row['tokens']:.1f}",
                    f"{100 * row['truncated_share']:.1f} %",
                ],
            )
            for row in of_task
        ]
        title = f"{task}: {of_task[0]['n']} held-out prompts, {k} completions each"
        tables.append(Cells(title, "loops", columns, lines))
    return tables


def exit_cells(rows: Sequence[Row]) -> list[Cells]:
    """A table for each task whose model has an exit gate: accuracy, and what the gate says, at each depth."""
    tables = []
    for task in dict.fromkeys(row["task"] for row in rows if "exit_probabilities" in row):
        of_task = [row for row in rows if row["task"] == task]
        columns = [f"avg@{of_task[0]['k']}", "exit p", "exit cdf", "gate's loop", "read at"]
        keys = ("avg_at_k", "exit_probability", "exit_cdf", "expected_exit_loop", "exit_loop")
        lines = [
            (_shown_depth(row), ["-" if (value := row.get(key)) is None else f"{value:.3f}" for key in keys])
            for row in of_task
        ]
        tables.append(Cells(f"{task}: the exit gate", "depth", columns, lines))
    return tables


def eval_notes(rows: Sequence[Row]) -> list[str]:
    """What the reader of the numbers must know: what was left out, and what could not be measured."""
    texts = [
        f"{row['task']}, {_shown_depth(row)}: {row['unjudged']} completions could not be judged and are left out."
        for row in rows
        if row["unjudged"]
    ]
    silent = dict.fromkeys(row["task"] for row in rows if row["majority_at_k"] is None and row["n"])
    return texts + [
        f"{task}: majority@k is not measured, as the reward's file has no final_answer(completion)." for task in silent
    ]


_INTERVAL = "95 % intervals over problems"


def _legend(k: int) -> str:
    return f"""\
avg@{k}      share of the completions with reward 1, which is pass@1; 95 %: its interval, with problems as the units
pass@j     chance that one of j completions passes, without bias from {k} (Chen et al., 2021)
majority@{k} share of problems whose most frequent final answer passes; equally frequent ones count alike
tokens     mean length; cut off: share of the completions that reached the limit"""


_EXIT_LEGEND = """\
R          every token is read out after R loops
q          early exit: each token is read out at the first loop by which the gate's probabilities sum to q
exit p     probability of stopping at that loop, exit cdf: by it; means over the tokens of the row with the most loops
gate's loop mean exit loop by the gate on that row's own tokens; read at: the mean loop where they were read out"""


def _interval(bounds: Sequence[float] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]:.3f}-{bounds[1]:.3f}"
