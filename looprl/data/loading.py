"""From a built-in task, a local file or a hub name to a dataset with a `prompt` column."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset

from looprl.data.errors import DatasetError
from looprl.data.files import FILE_SUFFIXES, read_file, rows_to_dataset
from looprl.data.tasks import BUILT_IN_TASKS, built_in_rows
from looprl.rewards import KEYWORDS_OF_TRAINER
from looprl.suggest import did_you_mean


def load_task_dataset(
    dataset: str,
    split: str,
    task_options: Mapping[str, Any] | None = None,
    size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Load a dataset for training or evaluation: its own columns, and a `prompt` for every row.

    `dataset` is looked up as a built-in task, then as a local .jsonl, .json, .csv or .parquet file, then as
    a name on the Hugging Face hub. Without a `prompt` column, the prompt is `question` and a line break.
    No row is left out, except that `size` takes the first rows of a file or hub dataset.

    `split`: `train` or `test` of a built-in task; a split of a hub dataset. A file is one split,
    whatever its name; `train[:90%]` and the like take a part of a file or hub dataset. `task_options`:
    the knobs of a built-in task, or for a hub dataset more arguments of `datasets.load_dataset` (such as
    `name`). `seed`: which problems a built-in task draws.

    Raises:
        DatasetError: nothing of that name, a bad split or option, no rows or fewer than `size`, no
            `prompt` or `question` column, a row without a usable prompt, a column name that the trainer
            uses itself.
    """
    if size is not None and size < 1:
        raise DatasetError(f"dataset {dataset!r}: size must be at least 1, not {size}")
    options = dict(task_options or {})
    if dataset in BUILT_IN_TASKS:
        rows = rows_to_dataset(built_in_rows(dataset, split, options, size, seed), dataset)
    elif Path(dataset).is_file():
        if options:
            raise DatasetError(
                f"{dataset}: a file has no task options, so {', '.join(options)} cannot apply; remove them"
            )
        rows = _select(read_file(Path(dataset)), split, dataset)
    else:
        rows = _from_hub(dataset, split, options)
    if size is not None:
        if size > len(rows):
            raise DatasetError(f"{dataset} ({split}): size is {size}, but there are only {len(rows)} rows")
        rows = rows.select(range(size))
    return _with_prompts(rows, f"{dataset} ({split})")


def _select(rows: Dataset, split: str, source: str) -> Dataset:
    name = split.partition("[")[0]
    try:
        parts = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(rows)})
    except ValueError as error:
        raise DatasetError(f"{source}: split {split!r} is not like train or train[:90%]: {error}") from error
    return rows.select([row for part in parts for row in range(part.from_, part.to)])


def _from_hub(dataset: str, split: str, options: dict[str, Any]) -> Dataset:
    built_in = f"built-in tasks: {', '.join(BUILT_IN_TASKS)}"
    meant = did_you_mean(dataset, BUILT_IN_TASKS)
    if Path(dataset).suffix.lower() in FILE_SUFFIXES:
        raise DatasetError(f"there is no file {dataset} in {Path.cwd()}; {built_in}.{meant}")
    if meant:
        raise DatasetError(f"there is no dataset {dataset!r}; {built_in}.{meant} A hub name is OWNER/NAME.")
    try:
        return datasets.load_dataset(dataset, split=split, **options)
    except Exception as error:
        arguments = ", ".join(
            [f"{dataset!r}", f"split={split!r}", *(f"{key}={value!r}" for key, value in options.items())]
        )
        raise DatasetError(
            f"dataset {dataset!r}: not a built-in task, no such file, and datasets.load_dataset({arguments}) "
            f"failed: {type(error).__name__}: {error}. The {built_in}; files are {', '.join(FILE_SUFFIXES)}."
        ) from error


def _with_prompts(rows: Dataset, source: str) -> Dataset:
    columns = rows.column_names
    if len(rows) == 0:
        raise DatasetError(f"{source}: the dataset is empty; give it at least one row")
    reserved = [name for name in columns if name in KEYWORDS_OF_TRAINER]
    if reserved:
        raise DatasetError(
            f"{source}: rename column {reserved[0]!r}; the trainer passes its own values under that name"
        )
    text_column = next((name for name in ("prompt", "question") if name in columns), None)
    if text_column is None:
        raise DatasetError(
            f"{source}: no column 'prompt', nor 'question' to make it from; the columns are "
            f"{', '.join(columns)}. Rename the one that holds the prompt."
        )
    texts = rows[text_column][:]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DatasetError(
                f"{source}: row {row} (counting from 0) has {type(text).__name__} in column {text_column!r}, "
                "not a string"
            )
        if not text.strip():
            raise DatasetError(f"{source}: row {row} (counting from 0) has an empty string in column {text_column!r}")
    if text_column == "question":
        rows = rows.add_column("prompt", [f"{text}\n" for text in texts])
    return rows
