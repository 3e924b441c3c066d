"""looprl export RUN DIR: the model of a run's checkpoint as a plain transformers folder."""

import argparse
import os
import shutil
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils import logging

from looprl.checkpoints import CheckpointStore, verify
from looprl.errors import UserError
from looprl.models import load_model


def run(argv: list[str]) -> int:
    """Write weights, configuration and tokenizer of the newest checkpoint that is whole, or of the one asked for."""
    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(
        prog="looprl export",
        description="Write the model and tokenizer of a run's last checkpoint as a plain transformers folder.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the model goes; it must not exist yet")
    parser.add_argument("--step", type=int, help="the checkpoint of this step instead of the last one")
    arguments = parser.parse_args(argv)
    print(f"wrote {arguments.folder}, from {export(arguments.run, arguments.folder, arguments.step)}")
    return 0


def export(run_folder: Path, target: Path, step: int | None = None) -> Path:
    """Write the model of a verified checkpoint to a new folder, whole or not at all; return the checkpoint.

    Raises:
        UserError: no such run or checkpoint, a damaged one, or a target that is in use.
    """
    store = CheckpointStore(run_folder / "checkpoints")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} exists: give a folder that is new or empty")
    if not store.steps():
        raise UserError(f"{run_folder} has no checkpoints to export: name the folder of a run (its --output_dir)")
    if step is None:
        checkpoint = store.newest_good()
        assert checkpoint is not None
    else:
        if step not in store.steps():
            have = ", ".join(map(str, store.steps()))
            raise UserError(f"{run_folder} has no checkpoint of step {step}; it has those of {have}")
        checkpoint = store.path(step)
        verify(checkpoint)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        load_model(str(checkpoint)).save_pretrained(partial)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(partial)
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return checkpoint
