"""Tensors across a process boundary, as bytes in safetensors format.

vLLM's own messages would turn them into lists of numbers, unless unpickling were allowed.
"""

from collections.abc import Mapping

from safetensors.torch import load, save
from torch import Tensor


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name, from any device, as bytes."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def unpack(data: bytes) -> dict[str, Tensor]:
    """What `pack` packed."""
    return load(data)
