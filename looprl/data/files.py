"""Reading a local .jsonl, .json, .csv or .parquet file: every row and every column of it."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from datasets import Dataset

from looprl.data.errors import DatasetError

FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


def read_rows(path: Path) -> list[dict[str, Any]] | Dataset:
    """Read all rows of a file; a .parquet file, whose columns have types, as a dataset.

    JSON may be one object per line or one list of objects, and a key that a row lacks becomes None. A CSV
    needs a header, and its values stay strings.

    Raises:
        DatasetError: an unknown suffix, an unreadable file, or a malformed row (with its line or number).
    """
    suffix = path.suffix.lower()
    if suffix not in FILE_SUFFIXES:
        raise DatasetError(
            f"{path}: looprl reads {', '.join(FILE_SUFFIXES)} files, not {suffix or 'one without suffix'}"
        )
    try:
        if suffix == ".parquet":
            return Dataset(pyarrow.parquet.read_table(path))
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DatasetError(f"{path} cannot be read as a {suffix} file: {error}") from error
    return _csv_rows(path, text) if suffix == ".csv" else _json_rows(path, text)


def rows_to_dataset(rows: Sequence[dict[str, Any]], source: str) -> Dataset:
    """Turn rows into a dataset with every column that occurs in any row.

    Raises:
        DatasetError: the values of a column cannot share one type; names `source`, the column and the row.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        return Dataset.from_dict(columns)
    except (pyarrow.ArrowException, TypeError, OverflowError) as error:
        raise DatasetError(f"{source}: {_mixed_column(columns)} ({error})") from error


def _mixed_column(columns: dict[str, list[Any]]) -> str:
    for name, values in columns.items():
        try:
            Dataset.from_dict({name: values})
        except (pyarrow.ArrowException, TypeError, OverflowError):
            present = [(row, type(value).__name__) for row, value in enumerate(values) if value is not None]
            other = next(((row, kind) for row, kind in present if kind != present[0][1]), None)
            where = f": row {present[0][0]} has {present[0][1]}, row {other[0]} has {other[1]}" if other else ""
            return f"column {name!r} mixes types{where} (rows count from 0); give all its values one type"
    return "the columns do not fit together"


def _json_rows(path: Path, text: str) -> list[dict[str, Any]]:
    if text.lstrip().startswith("["):
        try:
            places = [(f"item {number}", row) for number, row in enumerate(json.loads(text))]
        except json.JSONDecodeError as error:
            raise DatasetError(f"{path} is not valid JSON: {error}") from error
    else:
        places = []
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                places.append((f"line {number}", json.loads(line)))
            except json.JSONDecodeError as error:
                raise DatasetError(
                    f"{path}, line {number}: not valid JSON ({error.msg} at column {error.colno}); the "
                    "file must hold one object per line or one list of objects"
                ) from error
    for place, row in places:
        if not isinstance(row, dict):
            raise DatasetError(f'{path}, {place}: a row must be an object like {{"prompt": ...}}, not {row!r:.60}')
    return [row for _, row in places]


def _csv_rows(path: Path, text: str) -> list[dict[str, Any]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise DatasetError(
                f"{path}: two columns of the header have the same name ({', '.join(header)}); rename one"
            )
        rows = []
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                raise DatasetError(
                    f"{path}, line {reader.line_num}: {len(values)} values, but the header names "
                    f"{len(header)} columns; put values that hold a comma or a line break in double quotes"
                )
            rows.append(dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise DatasetError(f"{path}, line {reader.line_num}: {error}") from error
    return rows
