"""From a built-in task, a local file or a hub name to a dataset with a `prompt` column."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset

from looprl.data.errors import DatasetError
from looprl.data.files import FILE_SUFFIXES, read_rows, rows_to_dataset
from looprl.data.known import KNOWN, hub_options, recognise, with_prompts
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
    a name on the Hugging Face hub. Without a `prompt` column, the prompt is `question` or `problem` and a line break.
    GSM8K, MATH-500 and MBPP+ are recognised by their columns, from wherever they come, and have prompts of their own:
    the task option `template` is `plain` or `chat`.
    No row is left out, except that `size` takes the first rows of a file or hub dataset.

    `split`: `train` or `test` of a built-in task; a split of a hub dataset. A file is one split,
    whatever its name; `train[:90%]` and the like take a part of a file or hub dataset. `task_options`:
    the knobs of a built-in task, `template`, or for a hub dataset more arguments of `datasets.load_dataset`
    (such as `name`). `seed`: which problems a built-in task draws.

    Raises:
        DatasetError: nothing of that name, a bad split or option, no rows or fewer than `size`, no
            `prompt`, `question` or `problem` column, a row without a usable prompt, a column name that the trainer
            uses itself.
    """
    if size is not None and size < 1:
        raise DatasetError(f"dataset {dataset!r}: size must be at least 1, not {size}")
    options = dict(task_options or {})
    if dataset in BUILT_IN_TASKS:
        rows = rows_to_dataset(built_in_rows(dataset, split, options, size, seed), dataset)
    elif Path(dataset).is_file():
        template = options.pop("template", None)
        if options:
            raise DatasetError(
                f"{dataset}: a file has no task options, so {', '.join(options)} cannot apply; remove them"
            )
        rows = _select(_prepared(read_rows(Path(dataset)), template, dataset), split, dataset)
    else:
        template = options.pop("template", None)
        rows = _prepared(_from_hub(dataset, split, hub_options(dataset) | options), template, dataset)
    if size is not None:
        if size > len(rows):
            raise DatasetError(f"{dataset} ({split}): size is {size}, but there are only {len(rows)} rows")
        rows = rows.select(range(size))
    return _with_prompts(rows, f"{dataset} ({split})")


def _prepared(rows: list[dict[str, Any]] | Dataset, template: str | None, source: str) -> Dataset:
    if isinstance(rows, Dataset):
        columns = rows.column_names
    else:
        columns = list(dict.fromkeys(name for row in rows for name in row))
    known = recognise(columns)
    if known is not None and (template is not None or known.convert is not None):
        return rows_to_dataset(with_prompts(list(rows), known, template, source), source)
    if template is not None:
        names = ", ".join(known.name for known in KNOWN)
        raise DatasetError(
            f"{source}: template {template!r} cannot apply: the columns {', '.join(columns)} are not those of {names}; "
            "remove it, and give the prompts in a column 'prompt'"
        )
    return rows if isinstance(rows, Dataset) else rows_to_dataset(rows, source)


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
    text_column = next((name for name in ("prompt", "question", "problem") if name in columns), None)
    if text_column is None:
        raise DatasetError(
            f"{source}: no column 'prompt', nor 'question' or 'problem' to make it from; the columns are "
            f"{', '.join(columns)}. Rename the one that holds the prompt."
        )
    for row, value in enumerate(rows[text_column][:]):
        problem = _problem_of_prompt(value, f"in column {text_column!r}")
        if problem:
            raise DatasetError(f"{source}: row {row} (counting from 0) has {problem}")
    if text_column != "prompt":
        rows = rows.add_column("prompt", [f"{text}\n" for text in rows[text_column][:]])
    return rows


def _problem_of_prompt(prompt: Any, where: str) -> str | None:
    """What is wrong with a prompt, which is a text or a list of chat messages; None where nothing is."""
    if isinstance(prompt, str):
        return None if prompt.strip() else f"an empty string {where}"
    if not isinstance(prompt, list):
        return f"{type(prompt).__name__} {where}, not a string or a list of chat messages"
    is_chat = prompt and all(isinstance(message, dict) and {"role", "content"} <= set(message) for message in prompt)
    return None if is_chat else f"a list {where} that does not hold messages with role and content"
