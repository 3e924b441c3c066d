"""The tensors of a published model: safetensors or `.bin`, sharded or not, in a folder or on the hub.

Nothing in a file is executed: `.bin` files are read as tensors only. Every error names the file.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import cached_file

from looprl.errors import UserError

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.pt",
)
_PRECISIONS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SHOWN = 8  # problems that an error lists


class ModelError(UserError):
    """A checkpoint that cannot be used as a looped model."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and the file that each was read from."""

    tensors: dict[str, Tensor]
    files: dict[str, str]

    def stripped(self, prefixes: tuple[str, ...]) -> "Checkpoint":
        """The same without `prefixes` before the names. ModelError when two tensors would have one name."""
        tensors: dict[str, Tensor] = {}
        files: dict[str, str] = {}
        for name, tensor in self.tensors.items():
            short = stripped_name(name, prefixes)
            if short in tensors:
                raise ModelError(f"{self.files[name]}: tensor {short!r} is there twice, once as {name!r}")
            tensors[short], files[short] = tensor, self.files[name]
        return Checkpoint(tensors, files)


def stripped_name(name: str, prefixes: tuple[str, ...]) -> str:
    """The name without any of `prefixes` before it."""
    while (short := next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)) != name:
        name = short
    return name


def read_checkpoint(path_or_name: str, **hub_options: Any) -> Checkpoint:
    """Read the first of `WEIGHT_FILES` that is there. `hub_options` go to transformers' `cached_file`.

    ModelError when there is none, when a shard is missing, and on a file that is truncated or holds something else.
    """
    for name in WEIGHT_FILES:
        found = _find(path_or_name, name, hub_options)
        if found is None:
            continue
        if name.endswith(".index.json"):
            return _read_shards(path_or_name, found, hub_options)
        tensors = _read_file(found)
        return Checkpoint(tensors, dict.fromkeys(tensors, found.name))
    raise ModelError(f"no weights at {path_or_name!r}: looked for {', '.join(WEIGHT_FILES)}")


def read_header(path_or_name: str) -> dict[str, torch.dtype | None]:
    """Names and precisions of the tensors in safetensors files that are on this machine; no tensor is read.

    The precision is None where an index names a shard that is not here. Empty without such files.
    """
    here = {"local_files_only": True}
    for name in WEIGHT_FILES:
        found = _find(path_or_name, name, here) if ".safetensors" in name else None
        if found is None:
            continue
        if not name.endswith(".index.json"):
            return _header(found)
        places = _places(found)
        stored: dict[str, torch.dtype | None] = dict.fromkeys(places)
        for shard in sorted(set(places.values())):
            if (file := _find(path_or_name, shard, here)) is not None:
                stored |= _header(file)
        return stored
    return {}


def check_fit(checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]], owner: str) -> None:
    """ModelError unless the checkpoint has exactly the tensors `expected` (shapes by name), all floating point."""
    problems = []
    for name, shape in expected.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            where = ", ".join(sorted(set(checkpoint.files.values()))) or "the files"
            problems.append(f"{where}: missing tensor {name!r} of shape {list(shape)}")
        elif tuple(tensor.shape) != shape:
            problems.append(
                f"{checkpoint.files[name]}: tensor {name!r} has shape {list(tensor.shape)}, expected {list(shape)}"
            )
        elif not tensor.is_floating_point():
            problems.append(f"{checkpoint.files[name]}: tensor {name!r} is {tensor.dtype}, expected floating point")
    for name in sorted(checkpoint.tensors.keys() - expected.keys()):
        found = list(checkpoint.tensors[name].shape)
        problems.append(f"{checkpoint.files[name]}: unexpected tensor {name!r} of shape {found}")
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise ModelError(f"{owner}: {'; '.join(problems[:SHOWN] + more)}")


def _find(path_or_name: str, name: str, hub_options: dict[str, Any]) -> Path | None:
    try:
        found = cached_file(path_or_name, name, _raise_exceptions_for_missing_entries=False, **hub_options)
    except OSError as error:
        raise ModelError(f"{path_or_name!r}: {name} cannot be fetched: {error}") from error
    return None if found is None else Path(found)


def _read_shards(path_or_name: str, index: Path, hub_options: dict[str, Any]) -> Checkpoint:
    places = _places(index)
    tensors: dict[str, Tensor] = {}
    files: dict[str, str] = {}
    for shard in sorted(set(places.values())):
        found = _find(path_or_name, shard, hub_options)
        if found is None:
            raise ModelError(f"{path_or_name!r}: shard {shard} is missing, although {index.name} names it")
        held = _read_file(found)
        if lacking := sorted(name for name, place in places.items() if place == shard and name not in held):
            raise ModelError(f"{found} lacks tensor {lacking[0]!r}, which {index.name} places there")
        tensors |= held
        files |= dict.fromkeys(held, shard)
    return Checkpoint(tensors, files)


def _places(index: Path) -> dict[str, str]:
    try:
        return json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{index} cannot be read as an index of shards: {error!r}") from error


def _header(file: Path) -> dict[str, torch.dtype | None]:
    try:
        with safe_open(file, "pt") as opened:
            return {name: _PRECISIONS.get(opened.get_slice(name).get_dtype()) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error


def _read_file(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except UnpicklingError as error:
        raise ModelError(f"{file} cannot be read as tensors, and nothing else in it was executed: {error}") from error
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(tensors, dict):
        raise ModelError(f"{file} holds a {type(tensors).__name__}, expected tensors by name")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ModelError(f"{file} holds a {type(tensor).__name__} under {name!r}, expected a tensor")
    return tensors
