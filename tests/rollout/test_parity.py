"""Replaying one loop from the exported states gives the log-probs that the sampler drew with, in fp32.

That holds whatever the schedule was, because it is the very loop that the sampler ran last. The gap from the
endpoint, which is loop R + 1, is reported beside it: `pytest -rP tests/rollout/test_parity.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from looprl.models.loop import run_loops

EXACT = 1e-5
BROKEN = 1e-2
BLOCK = 32  # tokens in a block of the paged cache
MIXED = [1, 2, 3, 17, 31, 32, 33, 63, 64, 65, 90, 150]


def samplers(*names: str) -> pytest.MarkDecorator:
    """Run the test with each of these settings of `conftest.py`; scoped to the module, so that engines are shared."""
    return pytest.mark.parametrize("sampler", names, indirect=True, scope="module")


LOOPED = ["layer-R2", "layer-R6", "rms-R2", "rms-R6-chunked", "rms-R6-per-loop", "trained-R6"]
everywhere = samplers("layer-R1", *LOOPED)


@pytest.fixture
def assert_exact(gaps: Callable[..., Any], record_property: Callable[[str, object], None]) -> Callable[..., Any]:
    """Check parity and report both gaps."""

    def check(model: Any, records: Sequence[Any], **kwargs: Any) -> Any:
        found = gaps(model, records, **kwargs)
        record_property("penultimate_gap", found.penultimate)
        record_property("endpoint_gap", found.endpoint)
        print(f"gap to the sampler's log-probs: penultimate {found.penultimate:.1e}, endpoint {found.endpoint:.1e}")
        assert found.penultimate < EXACT, found
        return found

    return check


@everywhere
def test_replay_from_penultimate_state_matches_sampler_in_a_batch_of_mixed_lengths(
    sampler: Any, assert_exact: Any
) -> None:
    sampler.sync()
    records = sampler.sample(sampler.prompts(MIXED), max_tokens=24)
    assert len({len(record.prompt_ids) for record in records}) >= 8
    assert_exact(sampler.model, records)


@everywhere
def test_replay_from_penultimate_state_matches_sampler_with_prefix_cache_hits(sampler: Any, assert_exact: Any) -> None:
    sampler.sync()
    if sampler.trained:  # heated, because it is certain of the end of an answer
        prompts, temperature, hits = [p for p in sampler.prompts([33] * 8, seed=1) for _ in range(4)], 2.0, [BLOCK] * 32
    else:
        shared, *tails = sampler.prompts([70, 1, 5, 20], seed=1)
        prompts = [shared] * 4 + [shared + tail for tail in tails] + [shared[:40]]
        temperature, hits = 1.0, [2 * BLOCK] * 7 + [BLOCK]
    sampler.sample(prompts, seed=1)
    records = sampler.sample(prompts, seed=2, temperature=temperature)
    assert [output.num_cached_tokens for output in sampler.outputs] == hits
    assert_exact(sampler.model, records, temperature=temperature)


@everywhere
def test_replay_from_penultimate_state_matches_sampler_after_a_weight_sync(sampler: Any, assert_exact: Any) -> None:
    sampler.sync()
    prompts = sampler.prompts([70, 20, 12], seed=3)
    before = sampler.sample(prompts)
    changed = other_weights(sampler.model)
    sampler.sync(changed, version=1)
    records = sampler.sample(prompts)
    assert sampler.cached_tokens == 0
    assert [record.policy_version for record in before + records] == [0] * 3 + [1] * 3
    assert_exact(changed, records)


@everywhere
def test_logprobs_are_those_of_the_tempered_distribution(sampler: Any, assert_exact: Any, gaps: Any) -> None:
    sampler.sync()
    records = sampler.sample(sampler.prompts([4, 19, 20, 21, 40, 100], seed=4), max_tokens=24, temperature=0.7)
    assert_exact(sampler.model, records, temperature=0.7)
    assert gaps(sampler.model, records).penultimate > BROKEN


@everywhere
def test_states_are_those_of_cached_decoding_when_the_prompt_is_one_chunk(sampler: Any) -> None:
    sampler.sync()
    (record,) = sampler.sample(sampler.prompts([20], seed=5), max_tokens=24)
    logprobs, penultimate, _ = decode_again(sampler.model, record, chunk=20)
    torch.testing.assert_close(record.logprobs, logprobs, rtol=0, atol=1e-4)
    torch.testing.assert_close(record.states, penultimate, rtol=0, atol=1e-4)


@samplers("rms-R6-chunked")
def test_replay_from_penultimate_state_matches_sampler_with_chunked_prefill(sampler: Any, assert_exact: Any) -> None:
    budget = sampler.engine.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    assert budget == 24
    sampler.sync()
    prompts = sampler.prompts([25, 48, 100, 150], seed=6)
    assert all(len(prompt) > budget for prompt in prompts)
    assert_exact(sampler.model, sampler.sample(prompts))
    # One prompt alone comes in chunks of the budget, which is another schedule than the prompt in one chunk.
    sampler.sync()
    (record,) = sampler.sample(prompts[2:3])
    assert_exact(sampler.model, [record])
    _, chunked, _ = decode_again(sampler.model, record, chunk=budget)
    _, whole, _ = decode_again(sampler.model, record, chunk=len(record.prompt_ids))
    torch.testing.assert_close(record.states, chunked, rtol=0, atol=1e-4)
    assert (record.states - whole).abs().max() > BROKEN


@samplers("rms-R6-per-loop")
def test_with_per_loop_kv_any_schedule_is_the_full_sequence_forward(sampler: Any) -> None:
    sampler.sync()
    (record,) = sampler.sample(sampler.prompts([100], seed=6))  # chunks of 24
    with torch.no_grad():
        logits = sampler.model(torch.tensor([record.prompt_ids + record.completion_ids])).logits[0, 99:-1]
    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, torch.tensor(record.completion_ids)[:, None]).squeeze(-1)
    torch.testing.assert_close(record.logprobs, logprobs, rtol=0, atol=1e-4)


# What the parity check is for: each of these faults makes it fail by far.


@samplers("layer-R2")
def test_parity_fails_on_a_stale_prefix_cache(sampler: Any, gaps: Any) -> None:
    changed = other_weights(sampler.model, step=0.5)
    prompts = sampler.prompts([70, 100], seed=9)
    sampler.sync()
    sampler.sample(prompts)
    weights = [(name, parameter.detach()) for name, parameter in changed.named_parameters()]
    sampler.engine.llm.collective_rpc("reload_weights", kwargs=dict(weights_iterator=iter(weights)))
    records = sampler.sample(prompts)
    assert sampler.cached_tokens > 0
    assert gaps(changed, records).penultimate > BROKEN
    sampler.engine.reset_prefix_cache()
    assert gaps(changed, sampler.sample(prompts)).penultimate < EXACT


@everywhere
def test_parity_fails_on_a_missing_sync(sampler: Any, gaps: Any) -> None:
    sampler.sync()
    records = sampler.sample(sampler.prompts([5, 20, 40], seed=10))
    assert gaps(other_weights(sampler.model), records).penultimate > BROKEN


@samplers(*LOOPED)  # at R = 1 every penultimate state is the same
@pytest.mark.parametrize("shift", [-1, 1])
def test_parity_fails_on_a_state_row_shifted_by_one(sampler: Any, gaps: Any, shift: int) -> None:
    sampler.sync()
    records = sampler.sample(sampler.prompts([5, 20, 40], seed=11))
    assert gaps(sampler.model, records, shift=shift).penultimate > BROKEN


# The other state; last, because its engine closes the one before.


@samplers("layer-R2")
def test_endpoint_states_are_one_loop_after_the_penultimate_states_of_the_same_tokens(
    sampler: Any, start: Any, assert_exact: Any, gaps: Any
) -> None:
    prompts = sampler.prompts([3, 20, 70], seed=8)
    sampler.sync()
    penultimate = sampler.sample(prompts)
    found = assert_exact(sampler.model, penultimate)
    assert found.endpoint > BROKEN > found.penultimate
    other = start("layer-R2-endpoint")
    other.sync()
    endpoint = other.sample(prompts)
    for before, after in zip(penultimate, endpoint, strict=True):
        assert (before.state_kind, after.state_kind) == ("penultimate", "endpoint")
        assert before.completion_ids == after.completion_ids
        fed = torch.tensor([(before.prompt_ids + before.completion_ids)[:-1]])
        with torch.no_grad():
            advanced = sampler.model(fed, initial_state=before.states[None], num_loops=1).state[0]
        torch.testing.assert_close(after.states, advanced, rtol=0, atol=EXACT)
        _, _, decoded = decode_again(sampler.model, after, chunk=len(after.prompt_ids))
        torch.testing.assert_close(after.states, decoded, rtol=0, atol=1e-4)
    # A replay that starts from the endpoint states of the records themselves is loop R + 1 as well.
    assert abs(gaps(sampler.model, endpoint).penultimate - found.endpoint) < EXACT


def other_weights(model: Any, step: float = 0.1) -> Any:
    """The model after a large optimizer step: every tensor moved by `step` of its size."""
    changed = type(model)(model.config).eval()
    changed.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(12)
    with torch.no_grad():
        for parameter in changed.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(step * parameter.square().mean().sqrt() * noise)
    return changed


@torch.no_grad()
def decode_again(
    model: Any, record: Any, chunk: int, initial_states: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of the completion, penultimate states and endpoints, from transformers' cache instead of vLLM's.

    The prompt is read `chunk` tokens at a time, the completion token by token. initial_states: z_0 by position.
    """
    states: list[Tensor] = []

    def keep_states(core: Any, state: Tensor, injected: Tensor, context: Any, num_loops: int) -> Tensor:
        before = run_loops(core, state, injected, context, num_loops - 1)
        after = run_loops(core, before, injected, context, 1)
        states.append(torch.stack([before[0], after[0]]))
        return after

    prompt, completion = torch.tensor([record.prompt_ids]), torch.tensor([record.completion_ids])
    cache = DynamicCache()
    logits = []
    for ids in (*prompt.split(chunk, dim=1), *completion[:, :-1].split(1, dim=1)):
        first = cache.get_seq_length()
        output = model(
            ids,
            initial_state=None if initial_states is None else initial_states[None, first : first + ids.shape[1]],
            past_key_values=cache,
            use_cache=True,
            num_loops=record.num_loops,
            loop_runner=keep_states,
            logits_to_keep=ids.shape[1],
        )
        logits.append(output.logits[0])
    logps = torch.log_softmax(torch.cat(logits)[len(record.prompt_ids) - 1 :], dim=-1)
    penultimate, endpoint = torch.cat(states, dim=1)
    return logps.gather(-1, completion[0, :, None]).squeeze(-1), penultimate, endpoint
