"""Where the files that come with looprl are: recipes, rewards and the quickstart model.

In a checkout they stay at its top; `setup.py` puts them into the wheel, inside the package. Wherever a recipe,
a reward or a model is named by a path, the working directory comes first and these files second.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped_folder() -> Path:
    """Return the folder that holds `recipes/`, `rewards/` and `requirements/`."""
    in_wheel = _PACKAGE / "shipped_files"  # the name that setup.py gives it
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent


def with_shipped(path: str) -> str:
    """Return the path as it is, or where it is among the shipped files if it is only there.

    What is in neither place, such as a hub name, comes back unchanged.
    """
    shipped = shipped_folder() / path
    return str(shipped) if not Path(path).exists() and shipped.exists() else path
