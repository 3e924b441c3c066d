"""A recipe: a YAML file onto dataclasses. Every key of it is a command-line flag too, and flags win.

The flags come from transformers' HfArgumentParser, as in TRL; what it does not do is done here. Flags cannot
be abbreviated, an unknown key names the nearest valid one, and values are checked against the declared types,
the same way whether they come from the file or from a flag.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from inspect import get_annotations
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_origin, get_type_hints

from transformers.hf_argparser import HfArgumentParser

from looprl.errors import RecipeError
from looprl.recipe_file import display_name, find_recipe, load_recipe
from looprl.recipe_values import ValueMismatch, choices_of, convert, describe, union_members

__all__ = ["RecipeError", "parse_options", "parse_recipe", "parse_settings", "recipe_name"]

_BORROWED_FROM = ("trl", "transformers")
_UNSET = object()
_ABOUT_RECIPES = (
    "RECIPE is a YAML file, or the name of one in recipes/. Every key below can stand in it, and as a flag it "
    "overrides the file."
)


def parse_recipe(
    config_classes: tuple[type, ...],
    argv: list[str],
    prog: str,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Read `[RECIPE] [--key value ...]` and return one instance of each config class.

    A flag wins over the recipe file, the file over `defaults`, and those over the dataclasses' own defaults.
    A null in the file means None where the type allows it, and otherwise that the key is not given.

    Raises:
        RecipeError: a missing or broken recipe file, an unknown key or flag, a value of the wrong type, a
            required key that is not given, or settings that a dataclass refuses.
        SystemExit: after printing the help that `--help` asks for.
    """
    values, shown = _parse_values(config_classes, argv, prog, defaults)
    return tuple(_build(config_class, values, shown) for config_class in config_classes)


def read_recipe(
    config_classes: tuple[type, ...], argv: list[str], prog: str, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """As `parse_recipe`, but the settings that are given, with their types checked, in the place of instances."""
    return _parse_values(config_classes, argv, prog, defaults)[0]


def _parse_values(
    config_classes: tuple[type, ...], argv: list[str], prog: str, defaults: Mapping[str, Any] | None
) -> tuple[dict[str, Any], str]:
    """The settings that are given, and how messages call where they stand."""
    keys = _collect_keys(config_classes)
    recipe, flags = _split_recipe(argv)
    flag_values = _read_flags(_flag_parser(keys, f"{prog} [RECIPE]", _ABOUT_RECIPES), keys, flags)
    recipe_path = find_recipe(recipe) if recipe is not None else None
    shown = display_name(recipe_path) if recipe_path is not None else "command line"
    file_values = _read_settings(load_recipe(recipe_path), keys, shown) if recipe_path is not None else {}
    values = {**(defaults or {}), **file_values, **flag_values}
    missing = [name for name, key in keys.items() if key.required and name not in values]
    if missing:
        flags_needed = " ".join(f"--{name} ..." for name in missing)
        raise RecipeError(f"{shown}: {', '.join(missing)} must be given, in the recipe or as {flags_needed}")
    return values, shown


def parse_settings(config_classes: tuple[type, ...], settings: Mapping[str, Any], shown: str) -> tuple[Any, ...]:
    """Return one instance of each config class from settings as a recipe file holds them; no key is required.

    `shown`: how messages call the settings.

    Raises:
        RecipeError: an unknown key, a value of the wrong type, or settings that a dataclass refuses.
    """
    values = _read_settings(settings, _collect_keys(config_classes), shown)
    return tuple(_build(config_class, values, shown) for config_class in config_classes)


def parse_options(options_class: type, argv: list[str], prog: str, subject: str, about: str) -> tuple[str, Any]:
    """Read `SUBJECT [--key value ...]` of a command that has no recipe: the subject and an instance of the class.

    `subject`: what the first argument is, such as MODEL. `about`: what `--help` says above the flags.

    Raises:
        RecipeError: no subject, an unknown flag, a value of the wrong type, or options that the class refuses.
        SystemExit: after printing the help that `--help` asks for.
    """
    keys = _collect_keys((options_class,))
    given, flags = _split_recipe(argv)
    values = _read_flags(_flag_parser(keys, f"{prog} {subject}", about), keys, flags)
    if not given:
        raise RecipeError(f"{subject} is missing: {prog} {subject} [--key value ...]")
    return given, _build(options_class, values, "command line")


def recipe_name(argv: list[str]) -> str | None:
    """Return the name of the recipe in `argv` without folder and suffix; None where there is no recipe."""
    recipe, _ = _split_recipe(argv)
    return Path(recipe).stem if recipe is not None else None


@dataclass(frozen=True)
class _Key:
    """One setting: its dataclass field, its resolved type, and the class that first declared it."""

    field: "dataclasses.Field[Any]"
    hint: Any
    declared_by: type

    @property
    def borrowed(self) -> bool:
        return self.declared_by.__module__.split(".")[0] in _BORROWED_FROM

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def kinds(self) -> list[Any]:
        members = [member for member in union_members(self.hint) if member is not NoneType]
        return [get_origin(member) or member for member in members]

    @property
    def choices(self) -> list[Any]:
        return list(self.field.metadata.get("choices", ()))


def _collect_keys(config_classes: Iterable[type]) -> dict[str, _Key]:
    """Return every key by name, looprl's own before TRL's and transformers'."""
    keys: dict[str, _Key] = {}
    for config_class in config_classes:
        hints = get_type_hints(config_class)
        for field in dataclasses.fields(config_class):
            if not field.init:
                continue
            if field.name in keys:
                raise TypeError(f"{config_class.__name__}.{field.name} is also a key of another config class")
            declared_by = _first_declaration(config_class, field.name)
            keys[field.name] = _Key(field, hints[field.name], declared_by)
    return dict(sorted(keys.items(), key=lambda item: item[1].borrowed))


def _first_declaration(config_class: type, name: str) -> type:
    for base in reversed(config_class.__mro__):
        if name in get_annotations(base):
            return base
    return config_class


def _split_recipe(argv: list[str]) -> tuple[str | None, list[str]]:
    return (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv)


def _read_settings(settings: Mapping[str, Any], keys: dict[str, _Key], shown: str) -> dict[str, Any]:
    values = {}
    for name, value in settings.items():
        if name not in keys:
            raise RecipeError(f"{shown}: unknown key {name!r}{_nearest(name, list(keys))}")
        if value is None and NoneType not in union_members(keys[name].hint):
            continue
        values[name] = _checked(value, keys[name], f"{shown}: {name}")
    return values


def _read_flags(parser: argparse.ArgumentParser, keys: dict[str, _Key], flags: list[str]) -> dict[str, Any]:
    # argparse gives no default to what the namespace already has: what is still unset was not on the line.
    namespace = argparse.Namespace(**dict.fromkeys(keys, _UNSET))
    try:
        _, unknown = parser.parse_known_args(flags, namespace)
    except argparse.ArgumentError as error:
        raise RecipeError(f"{(error.argument_name or 'flags').split('/')[0]}: {error.message}") from error
    for text in unknown:
        if text.startswith("-"):
            name = text.split("=")[0].lstrip("-").replace("-", "_")
            raise RecipeError(f"unknown flag {text.split('=')[0]}{_nearest(name, list(keys), prefix='--')}")
    if unknown:
        raise RecipeError(
            f"unexpected argument {unknown[0]!r}: {parser.prog.split()[-1].strip('[]')} comes first, then the flags"
        )
    values = {}
    for name, value in vars(namespace).items():
        if value is not _UNSET:
            key = keys[name]
            if isinstance(value, list) and len(value) == 1 and str in union_members(key.hint):
                value = value[0]
            values[name] = _checked(value, key, f"--{name}")
    return values


def _checked(value: Any, key: _Key, where: str) -> Any:
    expected = "one of: " + ", ".join(map(str, key.choices)) if key.choices else describe(key.hint)
    try:
        converted = convert(value, key.hint)
        if key.choices and converted is not None and converted not in key.choices:
            raise ValueMismatch
    except ValueMismatch as mismatch:
        detail = f" ({mismatch})" if str(mismatch) else ""
        raise RecipeError(f"{where}: expected {expected}, got {_show(value)}{detail}") from mismatch
    return converted


def _show(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _nearest(name: str, valid: list[str], prefix: str = "") -> str:
    """Return the end of an error message that names what was probably meant."""
    longer = [candidate for candidate in valid if candidate.startswith(name)] if name else []
    near = (longer or get_close_matches(name, valid, n=3, cutoff=0.6))[:3]
    if not near:
        return "; --help lists the valid ones"
    return "; did you mean " + " or ".join(f"{prefix}{candidate}" for candidate in near) + "?"


def _build(config_class: type, values: Mapping[str, Any], shown: str) -> Any:
    names = {field.name for field in dataclasses.fields(config_class) if field.init}
    try:
        return config_class(**{name: value for name, value in values.items() if name in names})
    except ValueError as error:
        raise RecipeError(f"{shown}: {error}") from error


def _flag_parser(keys: dict[str, _Key], prog: str, about: str) -> argparse.ArgumentParser:
    """Return a parser with one flag per key, grouped by the class that declares the key."""
    parser = HfArgumentParser(
        dataclass_types=[],
        prog=prog,
        usage=f"{prog} [--key value ...]",
        description=about,
        allow_abbrev=False,
        exit_on_error=False,
        formatter_class=_KeyHelp,
    )
    groups: dict[type, Any] = {}
    for key in keys.values():
        if key.declared_by not in groups:
            library = key.declared_by.__module__.split(".")[0]
            title = f"{key.declared_by.__name__} ({library})" if key.borrowed else key.declared_by.__name__
            groups[key.declared_by] = parser.add_argument_group(title)
        parser._parse_dataclass_field(groups[key.declared_by], _as_flag(key))
    # argparse alone takes `-1e-3` for a flag.
    parser._negative_number_matcher = re.compile(r"^-\.?\d[\d.eE+-]*$|^-inf$")
    for action in parser._actions:
        action.required, action.type = False, None
        if isinstance(action, argparse._StoreFalseAction):
            action.help = argparse.SUPPRESS
        elif action.dest in keys:
            action.metavar = _placeholder(keys[action.dest])
    return parser


def _as_flag(key: _Key) -> "dataclasses.Field[Any]":
    """Return the field with a type that only says how many words its flag takes; `_checked` reads them."""
    kinds = key.kinds
    flag = copy(key.field)
    if kinds == [bool]:
        flag.type = bool
    else:
        flag.type = list[str] if list in kinds or tuple in kinds else str
    kept = {name: value for name, value in key.field.metadata.items() if name in ("aliases", "help")}
    flag.metadata = MappingProxyType(kept)
    return flag


def _placeholder(key: _Key) -> str:
    """Return what `--help` shows in the place of a flag's value."""
    choices = key.choices or [choice for member in union_members(key.hint) for choice in choices_of(member)]
    if choices:
        return "{" + ",".join(map(str, choices)) + "}"
    if dict in key.kinds:
        return "JSON"
    words = {bool: "true|false", int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH", list: "ITEM"}
    return words.get(key.kinds[0], "VALUE") if key.kinds else "VALUE"


class _KeyHelp(argparse.ArgumentDefaultsHelpFormatter):
    """Show each flag once: `--num-loops` works too, but the key is `num_loops`."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy(action)
        shown.option_strings = [flag for flag in action.option_strings if "-" not in flag.lstrip("-")]
        return super()._format_action_invocation(shown)
