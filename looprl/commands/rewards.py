"""looprl rewards try FILE.py:FUNCTION --data ROWS: score given completions, to debug a reward without a model."""

import argparse
import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from looprl.data.loading import load_task_dataset
from looprl.errors import UserError
from looprl.rewards import Reward, check_columns, completion_text, load_reward

_SHOWN_CHARACTERS = 60


def run(argv: list[str]) -> int:
    """Score the rows of a file with one reward, show them as a table, and write the scores where asked."""
    parser = argparse.ArgumentParser(
        prog="looprl rewards",
        usage="looprl rewards try FILE.py:FUNCTION --data ROWS [--json OUT]",
        description="Score given completions with a reward, without a model.",
        allow_abbrev=False,
    )
    action = parser.add_subparsers(dest="action", metavar="try", required=True, prog="looprl rewards").add_parser(
        "try",
        help="score the completions of a file",
        description="Score the completions of a file and show them as a table, in the file's order.",
        allow_abbrev=False,
    )
    action.add_argument("reward", metavar="FILE.py:FUNCTION", help="a reward, such as rewards/gsm8k.py:accuracy")
    action.add_argument(
        "--data",
        required=True,
        metavar="ROWS",
        help="a .jsonl, .json, .csv or .parquet file: `completion` beside the columns of the dataset",
    )
    action.add_argument("--json", metavar="OUT", help='also write {"scores": [...]}, null for what cannot be judged')
    arguments = parser.parse_args(argv)
    reward = load_reward(arguments.reward)
    rows = _load_rows(arguments.data)
    check_columns([reward], rows.column_names)
    scores = _scores(reward, rows)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"scores": scores}) + "\n")
    console = Console()
    console.print(_table(rows["completion"][:], scores))
    console.print(Text(_summary(scores)), soft_wrap=True)
    return 0


def _load_rows(path: str) -> Dataset:
    if not Path(path).is_file():
        raise UserError(f"there is no file {path}")
    rows = load_task_dataset(path, "train")
    if "completion" not in rows.column_names:
        raise UserError(f"{path} has no column 'completion'; its columns are {', '.join(rows.column_names)}")
    for row, completion in enumerate(rows["completion"][:]):
        if not isinstance(completion, str | list):
            raise UserError(f"{path}: row {row} (counting from 0) has {type(completion).__name__} as completion")
    return rows


def _scores(reward: Reward, rows: Dataset) -> list[float | None]:
    columns = {name: rows[name][:] for name in rows.column_names if name not in ("prompt", "completion")}
    from_trainer: dict[str, Any] = dict(trainer_state=None, log_extra=_ignore, log_metric=_ignore)
    return reward(prompts=rows["prompt"][:], completions=rows["completion"][:], **columns, **from_trainer)


def _ignore(name: str, value: Any) -> None:
    """What a reward logs belongs to no training step here."""


def _table(completions: list[Any], scores: list[float | None]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("row", justify="right")
    table.add_column("completion (its end)")
    table.add_column("score", justify="right")
    for row, (completion, score) in enumerate(zip(completions, scores, strict=True)):
        text = " ".join(completion_text(completion).split())
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"...{text[3 - _SHOWN_CHARACTERS :]}"
        table.add_row(str(row), Text(shown), "-" if score is None else f"{score:g}")
    return table


def _summary(scores: list[float | None]) -> str:
    judged = [score for score in scores if score is not None]
    mean = f"mean {sum(judged) / len(judged):.3f} over {len(judged)}" if judged else "none could be judged"
    unjudged = len(scores) - len(judged)
    return f"{len(scores)} rows: {mean}" + (f"; {unjudged} cannot be judged (-)" if unjudged and judged else "")
