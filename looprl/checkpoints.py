"""Checkpoint folders that are whole or not there: `checkpoints/step-N/` of a run.

A checkpoint is written under another name, gets a manifest with the checksum of each file, and is renamed only then.
Reading one verifies the manifest first. Whatever happens while a checkpoint is written, those before it stay.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from looprl.errors import UserError

MANIFEST_FILE = "manifest.json"
_STEP = re.compile(r"step-(\d+)")
_PARTIAL, _REPLACED = ".partial", ".replaced"  # what is being written, and what is being deleted

_logger = logging.getLogger(__name__)


class CheckpointError(UserError):
    """A checkpoint cannot be written, or is not what was written."""


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints in one folder. One process at a time may write to it.

    `stage(step)` gives an empty folder to write into, `publish(step)` makes it the checkpoint of that step.
    """

    folder: Path

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or will be."""
        return self.folder / f"step-{step}"

    def staging_path(self, step: int) -> Path:
        """Where the checkpoint of a step is written, under the name that transformers gives it."""
        return self.folder / _PARTIAL / f"checkpoint-{step}"

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, damaged or not, the oldest first."""
        if not self.folder.is_dir():
            return []
        matches = [_STEP.fullmatch(entry.name) for entry in self.folder.iterdir() if entry.is_dir()]
        return sorted(int(match[1]) for match in matches if match)

    def stage(self, step: int) -> Path:
        """Make an empty folder for the checkpoint of a step, and clear away what was never published."""
        self.clear_partial()
        staging = self.staging_path(step)
        staging.mkdir(parents=True)
        return staging

    def publish(self, step: int) -> Path:
        """Make what was staged the checkpoint of its step, in the place of an earlier one. Raises OSError."""
        staging, target = self.staging_path(step), self.path(step)
        _write_manifest(staging)
        if target.exists():
            os.rename(target, self.folder / f"{_REPLACED}-{target.name}")
        os.rename(staging, target)
        _flush(self.folder)
        self.clear_partial()
        return target

    def clear_partial(self) -> None:
        """Delete what is not published, such as what a process that was stopped while it wrote has left."""
        if self.folder.is_dir():
            for entry in self.folder.iterdir():
                if entry.name.startswith((_PARTIAL, _REPLACED)):
                    shutil.rmtree(entry)

    def newest_good(self) -> Path | None:
        """The newest checkpoint that verifies, after a warning for each newer one; None where there is none at all.

        Raises:
            CheckpointError: there are checkpoints, but none of them verifies.
        """
        damaged = []
        for step in reversed(self.steps()):
            try:
                verify(self.path(step))
            except CheckpointError as error:
                _logger.warning("%s; looking for an earlier checkpoint", error)
                damaged.append(str(error))
                continue
            return self.path(step)
        if damaged:
            raise CheckpointError(f"{self.folder} has no checkpoint that is whole: " + "; ".join(damaged))
        return None

    def set_aside_after(self, step: int) -> None:
        """Rename what comes after a step to `step-N.aside`, so that the run writes those steps anew."""
        for later in [number for number in self.steps() if number > step]:
            aside = self.path(later).with_name(f"step-{later}.aside")
            if aside.exists():
                shutil.rmtree(aside)
            os.rename(self.path(later), aside)
            _logger.warning("%s stays for study; delete it when it is not needed", aside)

    def thin_out(self, count: int, step: int) -> None:
        """Of the checkpoints up to a step, delete all but the newest `count`."""
        for old in [number for number in self.steps() if number <= step][:-count]:
            doomed = self.folder / f"{_REPLACED}-step-{old}"  # never half a checkpoint under its own name
            os.rename(self.path(old), doomed)
            shutil.rmtree(doomed)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name. Raises CheckpointError where it has none."""
    match = _STEP.fullmatch(checkpoint.name)
    if match is None:
        raise CheckpointError(f"{checkpoint} is not named step-N, as checkpoints are")
    return int(match[1])


def verify(checkpoint: Path) -> None:
    """Compare every file of a checkpoint with its manifest.

    Raises:
        CheckpointError: no manifest or a broken one, or a file that is missing, of another size or with other bytes.
    """
    manifest = checkpoint / MANIFEST_FILE
    if not manifest.is_file():
        raise CheckpointError(f"checkpoint {checkpoint} has no {MANIFEST_FILE}, so it was never finished")
    try:
        listed = json.loads(manifest.read_text(encoding="utf-8"))["files"].items()
        expected = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in listed}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: its {MANIFEST_FILE} cannot be read") from error
    if not expected:
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: its {MANIFEST_FILE} lists no files")
    for name, (size, digest) in expected.items():
        file = checkpoint / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {checkpoint} is damaged: {name} is missing")
        if file.stat().st_size != size:
            raise CheckpointError(
                f"checkpoint {checkpoint} is damaged: {name} has {file.stat().st_size} bytes instead of {size}"
            )
        if _sha256(file) != digest:
            raise CheckpointError(f"checkpoint {checkpoint} is damaged: {name} is not what was written")


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        _flush(path)
    listed = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files
    }
    manifest = folder / MANIFEST_FILE
    manifest.write_text(json.dumps({"files": listed}, indent=1) + "\n", encoding="utf-8")
    _flush(manifest)
    _flush(folder)


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Have the disk hold what was written, so that not even a power cut leaves the name without the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
