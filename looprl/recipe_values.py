"""Turn a value from a recipe file or a flag into the type that a dataclass field declares.

A file gives numbers, booleans, lists and mappings; a flag gives text or a list of texts. `convert` takes
them all.
"""

import json
from collections.abc import Mapping
from enum import Enum
from inspect import isclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_TRUE_WORDS = frozenset({"true", "yes", "t", "y", "1"})
_FALSE_WORDS = frozenset({"false", "no", "f", "n", "0"})
_NULL_WORDS = frozenset({"none", "null"})
_DESCRIPTIONS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    dict: "a mapping",
    list: "a list",
    tuple: "a list",
    NoneType: "null",
}


class ValueMismatch(ValueError):
    """A value does not fit its declared type; the message, often empty, adds what the type does not tell."""


def convert(value: Any, hint: Any) -> Any:
    """Return `value` as the type `hint`.

    Raises:
        ValueMismatch: it does not fit, or nothing written in a recipe can have that type.
    """
    if hint is Any:
        return value
    if _is_union(hint):
        return _to_union(value, hint)
    origin = get_origin(hint) or hint
    if origin is Literal:
        return _to_choice(value, {choice: choice for choice in get_args(hint)})
    if origin is dict:
        return _to_dict(value, hint)
    if origin in (list, tuple):
        return _to_sequence(value, hint, origin)
    if isclass(hint) and issubclass(hint, Enum):
        return _to_choice(value, {member.value: member for member in hint})
    if hint in _SCALARS:
        return _SCALARS[hint](value)
    raise ValueMismatch("it can only be set from Python code")


def describe(hint: Any) -> str:
    """Return the type in words, as in "expected a whole number or one of: auto"."""
    if _is_union(hint):
        members = sorted(union_members(hint), key=lambda member: member is NoneType)
        return " or ".join(describe(member) for member in members)
    choices = choices_of(hint)
    if choices:
        return "one of: " + ", ".join(map(str, choices))
    origin = get_origin(hint) or hint
    items = [argument for argument in get_args(hint) if argument is not ...]
    if origin is list and items:
        return f"a list (each item {describe(items[0])})"
    if origin is tuple and items:
        return f"a list ({', '.join(map(describe, items))}{', ...' if ... in get_args(hint) else ''})"
    return _DESCRIPTIONS.get(origin) or f"a {getattr(hint, '__name__', hint)}"


def choices_of(hint: Any) -> list[Any]:
    """Return the values that a Literal or Enum type allows; an empty list for every other type."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if isclass(hint) and issubclass(hint, Enum):
        return [member.value for member in hint]
    return []


def union_members(hint: Any) -> list[Any]:
    """Return the types that `hint` admits: the members of a union, or the type itself.

    `SomeEnum | str`, common in transformers, means the enum by name: its `str` would let any text through.
    """
    members = list(get_args(hint)) if _is_union(hint) else [hint]
    if any(isclass(member) and issubclass(member, Enum) for member in members):
        members = [member for member in members if member is not str]
    return members


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _to_union(value: Any, hint: Any) -> Any:
    members = union_members(hint)
    if value is None and NoneType in members:
        return None
    if isinstance(value, str) and str in members:
        # Where text is allowed, text stays text: no one-item lists, and 'none' is a word (`report_to: none`).
        containers = [member for member in members if (get_origin(member) or member) in (list, tuple, dict)]
        mappings = [member for member in containers if (get_origin(member) or member) is dict]
        if mappings and value.lstrip().startswith("{"):
            members = mappings
        else:
            members = [member for member in members if member is not NoneType and member not in containers]
    detail = ""
    for member in sorted(members, key=lambda member: member is str):
        try:
            return convert(value, member)
        except ValueMismatch as mismatch:
            detail = detail or str(mismatch)
    raise ValueMismatch(detail)


def _to_choice(value: Any, by_value: Mapping[Any, Any]) -> Any:
    for choice, result in by_value.items():
        text_matches = isinstance(value, str) and value == str(choice)
        if text_matches or (type(value) is type(choice) and value == choice):
            return result
    raise ValueMismatch


def _to_dict(value: Any, hint: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueMismatch(f"as a flag it is written in JSON, and this is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueMismatch
    _, item_hint = get_args(hint) or (str, Any)
    return {key: convert(item, item_hint) for key, item in value.items()}


def _to_sequence(value: Any, hint: Any, kind: type) -> Any:
    if isinstance(value, dict) or value is None:
        raise ValueMismatch
    items = list(value) if isinstance(value, list | tuple) else [value]
    item_hints = get_args(hint)
    if not item_hints:
        return kind(items)
    if kind is list or ... in item_hints:
        return kind(convert(item, item_hints[0]) for item in items)
    if len(items) != len(item_hints):
        raise ValueMismatch(f"that is {len(items)} items, not {len(item_hints)}")
    return tuple(convert(item, item_hint) for item, item_hint in zip(items, item_hints, strict=True))


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE_WORDS | _FALSE_WORDS:
        return value.lower() in _TRUE_WORDS
    raise ValueMismatch


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueMismatch
    return _parse_number(value, int)


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueMismatch
    return _parse_number(value, float)


def _parse_number(value: Any, kind: type) -> Any:
    try:
        return kind(value)
    except (ValueError, OverflowError) as error:
        raise ValueMismatch from error


def _to_str(value: Any) -> str:
    if isinstance(value, bool | int | float):
        raise ValueMismatch("put it in quotes to make it text")
    if not isinstance(value, str):
        raise ValueMismatch
    return value


def _to_path(value: Any) -> Path:
    return Path(_to_str(value))


def _to_none(value: Any) -> None:
    if value is not None and not (isinstance(value, str) and value.lower() in _NULL_WORDS):
        raise ValueMismatch


_SCALARS = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str, Path: _to_path, NoneType: _to_none}
