"""vLLM runs the published families as transformers does: log-probs by replay, states by cached decoding."""

from typing import Any

import pytest
import torch

from looprl.rollout.engine import RolloutEngine
from looprl.rollout.sampling import Sampling
from tests.published import random_published
from tests.rollout.test_parity import decode_again, other_weights

EXACT = 1e-5
BROKEN = 1e-2
NUM_LOOPS = 3
CASES = [
    ("huginn", "terminal", {}),
    ("llama", "per_loop", dict(max_num_batched_tokens=24)),
    ("olmo2", "terminal", {}),
    ("ouro", "per_loop", {}),
    ("ouro", "terminal", {}),
    ("parcae", "terminal", {}),
    ("parcae", "per_loop", {}),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def rollout(request: pytest.FixtureRequest) -> Any:
    """A model of that K/V policy, and an engine that has its weights."""
    name, policy, options = request.param
    model = random_published(name, kv_policy=policy)
    engine = RolloutEngine(model.config, kv_policy=policy, max_model_len=160, max_num_seqs=8, **options)
    yield model, engine
    engine.close()


def sample(model: Any, engine: Any, lengths: list[int], seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    last = model.config.vocab_size - 1
    prompts = [torch.randint(last, (length,), generator=generator).tolist() for length in lengths]
    return engine.generate(prompts, Sampling(24, (last,)), seed)


def test_replay_from_the_penultimate_state_gives_the_sampler_s_logprobs(rollout: Any, gaps: Any) -> None:
    model, engine = rollout
    engine.sync_weights(model.named_parameters(), 0)
    records = sample(model, engine, [1, 17, 33, 64, 90])
    found = gaps(model, records)
    assert found.penultimate < EXACT and found.endpoint > BROKEN
    # prefix-cached prompts, and another order
    assert gaps(model, sample(model, engine, [1, 17, 33, 64, 90][::-1] * 2)).penultimate < EXACT


def test_the_same_after_a_weight_sync(rollout: Any, gaps: Any) -> None:
    model, engine = rollout
    changed = other_weights(model, step=0.3)
    engine.sync_weights(changed.named_parameters(), 1)
    records = sample(model, engine, [5, 40], seed=1)
    assert gaps(changed, records).penultimate < EXACT
    assert gaps(model, records).penultimate > BROKEN


def test_states_and_logprobs_are_those_of_cached_decoding(rollout: Any) -> None:
    model, engine = rollout
    engine.sync_weights(model.named_parameters(), 2)
    (record,) = sample(model, engine, [20], seed=2)
    assert record.states.shape == (20 + len(record.completion_ids) - 1, model.config.hidden_size)
    logprobs, penultimate, _ = decode_again(model, record, chunk=20)
    torch.testing.assert_close(record.states, penultimate, rtol=0, atol=1e-4)
    torch.testing.assert_close(record.logprobs, logprobs, rtol=0, atol=1e-4)
