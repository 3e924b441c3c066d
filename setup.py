"""What pyproject.toml cannot say: the top-level folders that go into the wheel, inside the package.

`looprl/shipped.py` finds them again. An editable install leaves them where they are.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("recipes", "rewards", "requirements")


def shipped_files() -> list[Path]:
    """Return the files of these folders, hidden and compiled ones left out."""
    files = (file for folder in FOLDERS for file in sorted(Path(folder).rglob("*")) if file.is_file())
    return [file for file in files if not any(part.startswith((".", "__")) for part in file.parts)]


class BuildWithShippedFiles(build_py):
    """Copy the shipped files to `looprl/shipped_files/`, and put them into a source distribution too."""

    def run(self) -> None:
        """Build the package, then copy."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "looprl", "shipped_files")
        shutil.rmtree(target, ignore_errors=True)  # what an earlier build left there
        for file in shipped_files():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file)

    def get_source_files(self) -> list[str]:
        """Return what a source distribution needs to build the same wheel."""
        return [*super().get_source_files(), *map(str, shipped_files())]


setup(cmdclass={"build_py": BuildWithShippedFiles})
