"""Find a recipe and read its YAML, strictly: no duplicate keys, and scalars that mean what they look like."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from looprl.errors import RecipeError
from looprl.shipped import shipped_folder
from looprl.suggest import did_you_mean

RECIPES_FOLDER = shipped_folder() / "recipes"


def find_recipe(name: str) -> Path:
    """Return the file that `name` means: a path from the working directory, else a recipe that looprl ships.

    The suffix may be left out in both places.

    Raises:
        RecipeError: there is no such file; the message names the nearest recipe.
    """
    for candidate in (Path(name), Path(f"{name}.yaml")):
        if candidate.is_file():
            return candidate
    return find_shipped_recipe(name)


def find_shipped_recipe(name: str) -> Path:
    """Return the recipe of looprl's own that `name` means: `quickstart`, `quickstart.yaml`, `recipes/quickstart.yaml`.

    Raises:
        RecipeError: there is no such recipe; the message names the nearest one.
    """
    within = name.removeprefix("recipes/")
    for candidate in (RECIPES_FOLDER / within, RECIPES_FOLDER / f"{within}.yaml"):
        if candidate.is_file():
            return candidate
    known = list(shipped_recipes())
    hint = did_you_mean(Path(name).stem, known) + (f" Recipes: {', '.join(known)}." if known else "")
    raise RecipeError(f"no recipe {name!r}: there is no such file, and none of that name in recipes/.{hint}")


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with looprl, by name in alphabetical order."""
    files = {
        path.relative_to(RECIPES_FOLDER).with_suffix("").as_posix(): path for path in RECIPES_FOLDER.rglob("*.yaml")
    }
    return dict(sorted(files.items()))


def summary_line(path: Path) -> str:
    """Return what a recipe says about itself: its first line where that is a comment, else nothing."""
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    return first.lstrip("#").strip() if first.startswith("#") else ""


def display_name(path: Path) -> str:
    """Return how messages call a recipe file: by its place in `recipes/`, or by the path as given."""
    if path.is_relative_to(RECIPES_FOLDER):
        return f"recipes/{path.relative_to(RECIPES_FOLDER).as_posix()}"
    return str(path)


def load_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe file into a mapping of its keys; an empty file is an empty mapping.

    Raises:
        RecipeError: the file cannot be read, is not valid YAML, holds a key twice, or is not a mapping.
    """
    shown = display_name(path)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_RecipeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{shown}: cannot be read as text: {error}") from error
    except yaml.MarkedYAMLError as error:
        place = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise RecipeError(f"{shown}{place}: {error.problem or 'broken YAML'}") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{shown}: broken YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else "a single value"
        raise RecipeError(f"{shown}: a recipe holds a mapping (lines of `key: value`), but this holds {kind}")
    for key in content:
        if not isinstance(key, str):
            raise RecipeError(f"{shown}: the key {key!r} is not a name")
    return content


class _RecipeLoader(yaml.SafeLoader):
    """Safe YAML with the scalars of YAML 1.2.

    PyYAML follows YAML 1.1, where `save_strategy: no` is false, `lr: 3e-4` is text and `12:30` is 750.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    problem = f"the key {key_node.value!r} is given twice; keep one of them"
                    raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


_EXPONENT = r"[eE][-+]?[0-9]+"
for _tag, _pattern, _first_characters in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", ["<"]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        rf"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:{_EXPONENT})?|[-+]?[0-9][0-9_]*{_EXPONENT}"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _RecipeLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first_characters)
