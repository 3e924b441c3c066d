"""What the engine asks of its vLLM workers, by name, through `collective_rpc`.

Within one process tensors are handed over as they are, to an engine in a process of its own as bytes.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.kv_transfer import get_kv_transfer_group

from looprl.rollout.connector import StateConnector
from looprl.rollout.safetensors_bytes import pack, unpack


class WorkerCalls:
    """Mixed into vLLM's worker class (`worker_extension_cls`)."""

    model_runner: Any

    def load_named_tensors(self, tensors: Iterator[tuple[str, Tensor]] | bytes) -> None:
        """Replace the model's weights by tensors under their transformers names."""
        named = iter(unpack(tensors).items()) if isinstance(tensors, bytes) else tensors
        self.model_runner.reload_weights(weights_iterator=named)

    def draw_initial_states(self, seed: int) -> None:
        """Draw the states that all sequences start from until the next call."""
        self.model_runner.get_model().model.draw_initial_states(seed)

    def take_states(self, request_ids: list[str], packed: bool) -> dict[str, Tensor] | bytes:
        """Hand over and forget the states of these requests, as far as they have been copied."""
        connector = get_kv_transfer_group()
        assert isinstance(connector, StateConnector)
        states = {name: states for name, states in connector.take(request_ids).items() if states is not None}
        return pack(states) if packed else states

    def seed_sampler(self, seed: int) -> None:
        """Start the random stream that tokens are drawn from."""
        torch.manual_seed(seed)
