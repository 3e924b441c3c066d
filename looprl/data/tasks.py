"""The built-in tasks by name: one module each, with its difficulty knobs and its problems."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from looprl.data import arithmetic
from looprl.data.errors import DatasetError
from looprl.suggest import did_you_mean


@dataclass(frozen=True)
class BuiltInTask:
    """What a task module offers.

    `knobs` is the dataclass of its difficulty knobs, `rows(knobs, split, count, seed)` draws them, and
    `default_sizes` says how many rows each split has when nobody asks for a number.
    """

    knobs: Callable[..., Any]
    rows: Callable[[Any, str, int, int], Sequence[Mapping[str, Any]]]
    default_sizes: Mapping[str, int]


BUILT_IN_TASKS: Mapping[str, BuiltInTask] = {
    "arithmetic": BuiltInTask(
        arithmetic.ArithmeticTask, arithmetic.rows, {"train": 4096, "test": 512, "demonstrations": 28800}
    ),
}


def built_in_rows(
    name: str, split: str, task_options: Mapping[str, Any], size: int | None, seed: int
) -> list[dict[str, Any]]:
    """Draw the rows of one split of a built-in task; `task_options` are its knobs.

    Raises:
        DatasetError: an unknown split, an unknown or invalid knob, or more rows than the task can give.
    """
    task = BUILT_IN_TASKS[name]
    if split not in task.default_sizes:
        raise DatasetError(f"{name}: there is no split {split!r}; its splits are {', '.join(task.default_sizes)}")
    known = [knob.name for knob in fields(task.knobs)]  # type: ignore[arg-type]
    for option in task_options:
        if option not in known:
            raise DatasetError(
                f"{name}: there is no task option {option!r}; its options are {', '.join(known)}."
                + did_you_mean(str(option), known)
            )
    count = task.default_sizes[split] if size is None else size
    return [dict(row) for row in task.rows(task.knobs(**task_options), split, count, seed)]
