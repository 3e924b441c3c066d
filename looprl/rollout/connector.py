"""Recurrent states out of vLLM 0.32, through its paged cache.

The model writes each token's state into a cache-only layer (`STATE_CACHE`), which vLLM pages, shares and evicts
together with the keys and values; so prefix-cached tokens come with their states. When a request finishes, the
scheduler side of this connector names its blocks, and the worker side copies them to host memory before they
are freed. `WorkerCalls` (worker_calls.py) hands them over.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer

STATE_CACHE = "state_cache"


@dataclass
class FinishedRequest:
    """Where the states of one finished request lie."""

    request_id: str
    num_states: int
    block_ids: list[int]


@dataclass
class StateConnectorMetadata(KVConnectorMetadata):
    """Scheduler -> worker: the requests whose states are to be copied in this step."""

    finished: list[FinishedRequest] = field(default_factory=list)


class StateConnector(KVConnectorBase_V1, SupportsHMA):
    """Store-only KV connector: copies the state cache of every finished request to host memory."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        groups = [
            index
            for index, group in enumerate(kv_cache_config.kv_cache_groups)
            if any(STATE_CACHE in name for name in group.layer_names)
        ]
        if len(groups) != 1:
            raise RuntimeError(f"expected one cache group named {STATE_CACHE!r}, found {len(groups)}")
        self.group = groups[0]
        self.finished: list[FinishedRequest] = []  # scheduler side
        self.states: dict[str, Tensor] = {}  # worker side, from here on
        self.cache: Tensor | None = None  # [blocks, 1, block_size, d]

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        (name,) = get_layers_from_vllm_config(self._vllm_config, CacheOnlyAttentionLayer, list(kv_caches))
        self.cache = kv_caches[name]

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Copy what the scheduler asked for; the names returned tell it that their blocks may be freed."""
        copied = set()
        if self.has_connector_metadata():
            metadata = self._get_connector_metadata()
            assert isinstance(metadata, StateConnectorMetadata) and self.cache is not None
            with torch.inference_mode(False):  # vLLM runs in it, and what it yields cannot enter autograd
                for request in metadata.finished:
                    blocks = torch.tensor(request.block_ids, device=self.cache.device)
                    states = self.cache[blocks, 0].flatten(0, 1)[: request.num_states]
                    self.states[request.request_id] = states.to("cpu", copy=True)
                    copied.add(request.request_id)
        return copied or None, None

    def take(self, request_ids: list[str]) -> dict[str, Tensor | None]:
        """Hand over and forget the states of these requests."""
        return {request_id: self.states.pop(request_id, None) for request_id in request_ids}

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        if request.num_output_tokens == 0:
            return False, None
        num_states = request.num_tokens - 1  # the last sampled token was never fed
        self.finished.append(FinishedRequest(request.request_id, num_states, list(block_ids[self.group])))
        return True, {"states_of": request.request_id, "preemptions": request.num_preemptions}

    def build_connector_meta(self, scheduler_output: Any) -> StateConnectorMetadata:
        metadata = StateConnectorMetadata(self.finished)
        self.finished = []
        return metadata

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        raise RuntimeError("vLLM should have passed every group's blocks, to request_finished_all_groups")

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
