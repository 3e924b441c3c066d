"""The parts of vLLM 0.32 that looprl leans on and that no documentation promises.

When one of these fails after an update of vLLM, read `looprl/rollout` against the new version before anything
else: the other rollout tests then say whether what moved still works.
"""

import inspect
from typing import Any

import pytest
import torch

from looprl.models import FAMILIES


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_version() -> None:
    import vllm

    assert vllm.__version__.startswith("0.32."), "looprl/rollout was written against vLLM 0.32"


def test_cache_only_layer() -> None:
    from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer

    assert parameters(CacheOnlyAttentionLayer)[:4] == ["num_heads", "head_size", "cache_config", "prefix"]
    assert parameters(CacheOnlyAttentionLayer.forward) == ["self", "to_cache"]


def test_states_lie_in_the_cache_as_blocks_of_tokens() -> None:
    from vllm.model_executor.models.extract_hidden_states import basic_cache

    assert parameters(basic_cache) == ["to_cache", "kv_cache", "slot_mapping"]
    cache = torch.zeros(5, 1, 4, 2)  # [blocks, heads, tokens in a block, width]
    basic_cache(torch.ones(1, 1, 2), cache, torch.tensor([3 * 4 + 2]))
    assert cache[3, 0, 2].tolist() == [1, 1] and cache.sum() == 2


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("__init__", ["self", "vllm_config", "role", "kv_cache_config"]),
        ("register_kv_caches", ["self", "kv_caches"]),
        ("has_connector_metadata", ["self"]),
        ("_get_connector_metadata", ["self"]),
        ("get_finished", ["self", "finished_req_ids"]),
        ("build_connector_meta", ["self", "scheduler_output"]),
        ("request_finished", ["self", "request", "block_ids"]),
        ("get_num_new_matched_tokens", ["self", "request", "num_computed_tokens"]),
        ("update_state_after_alloc", ["self", "request", "blocks", "num_external_tokens"]),
        ("start_load_kv", ["self", "forward_context", "kwargs"]),
        ("wait_for_layer_load", ["self", "layer_name"]),
        ("save_kv_layer", ["self", "layer_name", "kv_layer", "attn_metadata", "kwargs"]),
        ("wait_for_save", ["self"]),
    ],
)
def test_connector_methods(method: str, expected: list[str]) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    from looprl.rollout.connector import StateConnector

    assert parameters(getattr(KVConnectorBase_V1, method)) == expected
    assert parameters(getattr(StateConnector, method)) == expected


def test_connector_implements_all_that_is_asked_of_it() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA, supports_hma

    from looprl.rollout.connector import StateConnector

    assert parameters(SupportsHMA.request_finished_all_groups) == ["self", "request", "block_ids"]
    assert supports_hma(StateConnector)
    assert not inspect.isabstract(StateConnector)


def test_requests_say_what_the_connector_reads() -> None:
    from vllm.v1.request import Request

    for name in ("num_tokens", "num_output_tokens"):
        assert isinstance(getattr(Request, name), property)
    assert "self.num_preemptions = 0" in inspect.getsource(Request.__init__)
    assert "self.request_id = request_id" in inspect.getsource(Request.__init__)


def test_worker_finds_its_connector() -> None:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    assert parameters(get_kv_transfer_group) == []


def test_weights_are_reloaded_from_an_iterator() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_worker import Worker

    assert "weights_iterator" in parameters(GPUModelRunner.reload_weights)
    assert parameters(Worker.reload_weights) == ["self", "args", "kwargs"]


def test_scheduler_can_be_drained() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.core_client import InprocClient
    from vllm.v1.engine.llm_engine import LLMEngine

    assert parameters(Scheduler.has_requests) == ["self"]
    assert parameters(LLMEngine.step) == ["self"]
    assert "self.engine_core = EngineCore(" in inspect.getsource(InprocClient.__init__)
    assert "self.scheduler" in inspect.getsource(EngineCore.__init__)


def test_shutdown_destroys_the_process_group_through_the_function_that_is_held_back() -> None:
    from vllm.distributed.parallel_state import destroy_distributed_environment
    from vllm.v1.engine.core_client import InprocClient

    assert "torch.distributed.destroy_process_group()" in inspect.getsource(destroy_distributed_environment)
    assert "shutdown" in vars(InprocClient)


def test_sampling_parameters() -> None:
    from vllm import SamplingParams

    used = {"temperature", "max_tokens", "stop_token_ids", "ignore_eos", "logprobs", "detokenize"}
    assert used <= set(parameters(SamplingParams))
    # nothing but the temperature alters the distribution unless it is asked for
    defaults = SamplingParams()
    assert (defaults.top_p, defaults.min_p) == (1.0, 0.0) and defaults.top_k in (0, -1)
    assert (defaults.presence_penalty, defaults.frequency_penalty, defaults.repetition_penalty) == (0.0, 0.0, 1.0)


def test_engine_options() -> None:
    from vllm.engine.arg_utils import EngineArgs

    used = """load_format skip_tokenizer_init hf_overrides dtype max_model_len max_num_seqs logprobs_mode
        enable_prefix_caching disable_log_stats kv_transfer_config worker_extension_cls enforce_eager block_size
        kv_cache_memory_bytes"""
    assert set(used.split()) <= set(parameters(EngineArgs))


def test_every_family_has_a_twin_that_vllm_can_load() -> None:
    from vllm import ModelRegistry

    from looprl.rollout.plugin import TWINS, architecture, register

    register()
    assert {architecture(model_type) for model_type in FAMILIES} == set(TWINS)
    assert set(TWINS) <= set(ModelRegistry.get_supported_archs())


def test_plugin_is_an_entry_point_of_vllm() -> None:
    from importlib.metadata import entry_points

    (plugin,) = [point for point in entry_points(group="vllm.general_plugins") if point.name == "looprl"]
    assert plugin.value == "looprl.rollout.plugin:register"


def test_the_client_of_an_engine_process_waits_where_the_watchdog_makes_it_fail():
    from vllm.v1.engine.core_client import SyncMPClient

    source = inspect.getsource(SyncMPClient)
    assert "self.outputs_queue.get()" in source
    assert "self.utility_results[call_id] = future" in source and "future.result()" in source
