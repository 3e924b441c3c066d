"""What a token takes, by the formulas that `looprl plan` uses, is what vLLM's cache and the records give it."""

from typing import Any

import pytest
import torch

from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.rollout.connector import STATE_CACHE
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.sampling import Sampling
from looprl.rollout.token_bytes import kv_bytes_per_token, state_bytes_per_token
from tests.published import random_published

BLOCK = 32
VOCABULARY = 128  # vLLM pads a head to a multiple of 64 rows
LOOPLM = dict(vocab_size=VOCABULARY, num_key_value_heads=1, num_prelude_layers=2, num_coda_layers=0, num_loops=5)
CASES = {  # the model, its K/V policy, its precision, loops that are not its own
    "looplm-per-loop-bf16": (LOOPLM, "per_loop", torch.bfloat16, 4),
    "looplm-terminal": (LOOPLM, "terminal", torch.float32, 4),
    "llama-per-loop": ("llama", "per_loop", torch.float32, 2),
    "huginn-terminal": ("huginn", "terminal", torch.float32, 3),  # its head is tied
    "ouro-terminal-bf16": ("ouro", "terminal", torch.bfloat16, 3),
}


def cached_bytes_per_token(engine: RolloutEngine) -> tuple[float, float]:
    """Of keys and values, and of states, as vLLM has laid out its cache."""
    tensors = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_tensors
    is_state = [any(STATE_CACHE in name for name in tensor.layers) for tensor in tensors]
    sizes = [tensor.block_stride * len(tensor.layers) / BLOCK for tensor in tensors]
    pairs = list(zip(sizes, is_state, strict=True))
    return sum(size for size, state in pairs if not state), sum(size for size, state in pairs if state)


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_a_token_are_those_of_the_engine_s_cache_and_records(name: str) -> None:
    architecture, policy, dtype, num_loops = CASES[name]
    model: Any
    if isinstance(architecture, str):
        model = random_published(architecture, vocab_size=VOCABULARY, kv_policy=policy)
    else:
        model = LoopLMForCausalLM(LoopLMConfig(**architecture, kv_policy=policy))
    model = model.to(dtype)
    config = model.config
    engine = RolloutEngine(config, num_loops=num_loops, kv_policy=policy, max_model_len=64, max_num_seqs=4, dtype=dtype)
    try:
        kv, state = cached_bytes_per_token(engine)
        assert kv_bytes_per_token(config, num_loops, policy, dtype) == kv == engine.kv_bytes_per_token
        assert state_bytes_per_token(config, dtype) == state == engine.state_bytes_per_token
        if isinstance(architecture, str):  # of LoopLM's own twin vLLM packs the linear layers away on a CPU
            (held,) = engine.llm.apply_model(lambda twin: sum(parameter.numel() for parameter in twin.parameters()))
            tied_head = model.lm_head.weight.numel() if config.tie_word_embeddings else 0  # a copy, in the twin
            assert held == sum(parameter.numel() for parameter in model.parameters()) + tied_head
        engine.sync_weights(model.named_parameters(), 0)
        (record,) = engine.generate([[1, 2, 3]], Sampling(4, ()), seed=0)
        assert record.states.nbytes == state * len(record.states)
    finally:
        engine.close()
