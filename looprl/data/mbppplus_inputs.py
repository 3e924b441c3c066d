"""Arguments of MBPP+ tasks that JSON cannot carry, restored per task as EvalPlus documents (its `data/mbpp.py`).

The file stores tuples and sets as lists and complex numbers as strings.
"""

from collections.abc import Callable
from typing import Any

Arguments = list[Any]


def _each(restore_argument: Callable[[Any], Any]) -> Callable[[Arguments], Arguments]:
    return lambda arguments: [restore_argument(argument) for argument in arguments]


def _only(place: int, restore_argument: Callable[[Any], Any]) -> Callable[[Arguments], Arguments]:
    return lambda arguments: [
        restore_argument(argument) if index == place else argument for index, argument in enumerate(arguments)
    ]


def _tuples(items: list[Any]) -> list[Any]:
    return [tuple(item) for item in items]


def _deep_tuple(value: Any) -> Any:
    return tuple(_deep_tuple(item) for item in value) if isinstance(value, list) else value


def _tuple_of_tuples(items: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in items)


def _sets(items: list[Any]) -> list[Any]:
    return [set(item) if isinstance(item, list) and item else {} for item in items]


def _tuple_values(items: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) for key, value in items.items()}


_RULES: list[tuple[Callable[[Arguments], Arguments], set[int]]] = [
    (_each(tuple), {
        2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809,
    }),
    (_each(_tuples), {63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780}),
    (_each(_tuple_of_tuples), {259, 278, 401, 445}),
    (_each(_deep_tuple), {580, 615, 791}),
    (_only(0, _tuples), {75, 413, 444, 753}),
    (_only(0, tuple), {250, 307, 405, 446, 617, 720, 763, 808}),
    (_only(1, tuple), {106, 750}),
    (_only(0, _sets), {115}),
    (_only(0, _tuple_values), {722}),
    (lambda arguments: [float(arguments[0]), complex(arguments[1])], {124}),
    (_each(complex), {252}),
]  # fmt: skip


def restore(task_id: str, inputs: list[Arguments]) -> list[Arguments]:
    """Return the arguments of every call as the task expects them. `task_id` is like `Mbpp/124`."""
    number = int(task_id.rpartition("/")[2])
    rule = next((rule for rule, tasks in _RULES if number in tasks), list)
    return [rule(arguments) for arguments in inputs]
