"""looprl recipes: list the recipes that come with looprl; `looprl recipes copy NAME` copies one to edit."""

import argparse
import shutil
from pathlib import Path

from looprl.errors import RecipeError
from looprl.recipe_file import find_shipped_recipe, shipped_recipes, summary_line


def run(argv: list[str]) -> int:
    """List the recipes with one line each, or copy one into the working directory."""
    parser = argparse.ArgumentParser(
        prog="looprl recipes",
        usage="looprl recipes [copy NAME [--force]]",
        description="List the recipes that come with looprl, with one line each.",
        allow_abbrev=False,
    )
    action = parser.add_subparsers(dest="action", metavar="copy", prog="looprl recipes").add_parser(
        "copy",
        help="copy a recipe into the working directory, to edit it",
        description="Copy a recipe into the working directory. Paths in it still find the shipped files.",
        allow_abbrev=False,
    )
    action.add_argument("name", metavar="NAME", help="a recipe, as `looprl recipes` lists it")
    action.add_argument("--force", action="store_true", help="replace the file if there is one")
    arguments = parser.parse_args(argv)
    if arguments.action == "copy":
        print(f"wrote {_copy(arguments.name, arguments.force)}")
        return 0
    recipes = shipped_recipes()
    width = max(map(len, recipes), default=0)
    for name, path in recipes.items():
        print(f"{name:<{width}}  {summary_line(path)}".rstrip())
    return 0


def _copy(name: str, force: bool) -> Path:
    source = find_shipped_recipe(name)
    target = Path(source.name)
    if target.exists():
        if not target.is_file():
            raise RecipeError(f"{target} in the working directory is not a file: move it away")
        if target.samefile(source):
            raise RecipeError(f"{target} in the working directory is the shipped recipe itself: copy it elsewhere")
        if not force:
            raise RecipeError(f"{target} exists in the working directory: replace it with --force")
    shutil.copyfile(source, target)
    return target
