"""What `looprl eval` leaves behind: `problems.jsonl`, `eval.json`, `eval.png`, and all in `report.html`."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from looprl.measure.cells import Cells
from looprl.measure.eval_figure import eval_figure
from looprl.measure.eval_rows import Row, summary_row
from looprl.measure.page import configuration, figure, notes, page, section, shown
from looprl.measure.report import REPORT_FILE
from looprl.measure.summary import rate
from looprl.runs import RunFolder, plain, write_atomically


def write_eval(folder: Path, problems: Sequence[Row], k: int, settings: Mapping[str, Any]) -> list[Row]:
    """Write everything that follows from the problems' rows, and return the rows of `eval.json`.

    problems: those of each task and number of loops stand together.
    """
    rows = [
        summary_row(list(group), k)
        for _, group in groupby(problems, key=lambda problem: (problem["task"], problem["num_loops"]))
    ]
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
    write_atomically(folder / REPORT_FILE, page(f"looprl eval {folder.resolve().name}", sections))
    return rows


def eval_cells(rows: Sequence[Row]) -> list[Cells]:
    """A table for each task, a line for each number of loops."""
    tables = []
    for task in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == task]
        k = of_task[0]["k"]
        more = [j for j in of_task[0]["pass_at"] if j > 1]
        columns = [f"avg@{k}", "95 %", *(f"pass@{j}" for j in more), f"majority@{k}", "tokens", "cut off"]
        lines = [
            (
                f"R = {row['num_loops']}",
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


def eval_notes(rows: Sequence[Row]) -> list[str]:
    """What the reader of the numbers must know: what was left out, and what could not be measured."""
    texts = [
        f"{row['task']}, R = {row['num_loops']}: {row['unjudged']} completions could not be judged and are left out."
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


def _interval(bounds: Sequence[float] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]:.3f}-{bounds[1]:.3f}"
