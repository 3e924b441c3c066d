"""What the engine promises besides exact states: its errors, its order, its randomness, its syncs, its end."""

import os
import random
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from looprl.rollout.engine import MAX_TRIES, RolloutEngine
from looprl.rollout.random_state import preserved_random_state, rollout_seed
from looprl.rollout.sampling import RolloutError, Sampling

EXACT = 1e-5
WINDOW = 192


def samplers(*names: str) -> pytest.MarkDecorator:
    """Run the test with each of these settings of `conftest.py`; scoped to the module, so that engines are shared."""
    return pytest.mark.parametrize("sampler", names, indirect=True, scope="module")


def same(records: list[Any], others: list[Any]) -> bool:
    """Whether tokens, log-probs and states are equal bit for bit."""
    return all(
        a.prompt_ids == b.prompt_ids
        and a.completion_ids == b.completion_ids
        and torch.equal(a.logprobs, b.logprobs)
        and torch.equal(a.states, b.states)
        for a, b in zip(records, others, strict=True)
    )


# Errors


@samplers("layer-R2")
def test_without_weights_there_is_no_policy(sampler: Any) -> None:
    sampler.close()
    with pytest.raises(RolloutError, match="no weights yet: call sync_weights"):
        sampler.engine.generate([[1, 2]], Sampling(4, ()), seed=0)


@samplers("layer-R2")
@pytest.mark.parametrize("length", [0, WINDOW - 16 + 1, WINDOW])
def test_a_prompt_that_does_not_fit_the_window_is_named_with_its_length(sampler: Any, length: int) -> None:
    sampler.sync()
    prompts = [[1, 2, 3], [4] * length, [5]]
    with pytest.raises(
        RolloutError, match=rf"prompt 1 has {length} tokens.*16.*window of {WINDOW}.*1 to {WINDOW - 16}"
    ):
        sampler.engine.generate(prompts, Sampling(16, ()), seed=0)


@samplers("layer-R2")
def test_the_longest_prompt_that_fits_is_sampled_to_the_end_of_the_window(sampler: Any) -> None:
    sampler.sync()
    (record,) = sampler.engine.generate([[4] * (WINDOW - 16)], Sampling(16, ()), seed=0)
    assert len(record.completion_ids) == 16 and len(record.states) == WINDOW - 1


@samplers("layer-R2")
@pytest.mark.parametrize("token", [97, 1000, -1])
def test_a_token_that_the_model_does_not_know_is_refused_before_vllm_sees_it(sampler: Any, token: int) -> None:
    sampler.sync()
    with pytest.raises(RolloutError, match=rf"prompt 1 .*{token}.* knows 0 to 96"):
        sampler.engine.generate([[1], [1, token]], Sampling(4, ()), seed=0)
    assert len(sampler.engine.generate([[1], [96]], Sampling(4, ()), seed=0)) == 2


def test_a_window_beyond_the_models_positions_is_refused(make_model: Callable[..., Any]) -> None:
    with pytest.raises(RolloutError, match=r"window of 257 .* max_position_embeddings, 256"):
        RolloutEngine(make_model("layer-R2").config, max_model_len=257)


@pytest.mark.parametrize("temperature", [-1.0, 0.001, float("nan")])
def test_a_temperature_that_vllm_would_change_is_refused(temperature: float) -> None:
    with pytest.raises(RolloutError, match="temperature"):
        Sampling(4, (), temperature)


def test_a_completion_of_no_tokens_cannot_be_asked_for() -> None:
    with pytest.raises(RolloutError, match="max_tokens is 0"):
        Sampling(0, ())


# What comes back


@samplers("layer-R2")
def test_records_come_in_the_order_of_the_prompts(sampler: Any) -> None:
    sampler.sync()
    prompts = sampler.prompts([90, 1, 40, 1, 7, 33] * 6)  # more than run at a time, of mixed lengths
    records = sampler.sample(prompts)
    assert [list(record.prompt_ids) for record in records] == prompts


@samplers("layer-R2")
def test_no_prompts_give_no_records(sampler: Any) -> None:
    sampler.sync()
    assert sampler.engine.generate([], Sampling(4, ()), seed=0) == []


@samplers("layer-R2")
def test_a_record_says_where_it_comes_from(sampler: Any) -> None:
    sampler.sync(version=7)
    (record,) = sampler.sample([[1, 2, 3]])
    record.check(state_kind="penultimate", num_loops=2, kv_policy="terminal", policy_version=7, hidden_size=64)
    assert record.states.dtype == record.logprobs.dtype == torch.float32
    assert not record.states.is_inference()  # such a tensor could not enter a training step


@samplers("layer-R2", "trained-R6")
def test_completions_end_with_a_stop_token_or_after_max_tokens(sampler: Any) -> None:
    sampler.sync()
    stop = sampler.stop
    lengths = [3, 20] * 8 if sampler.trained else [3] * 48
    records = sampler.sample(sampler.prompts(lengths), max_tokens=12 if sampler.trained else 40, temperature=1.5)
    for record in records:
        assert stop not in record.completion_ids[:-1]
        assert (record.finish_reason == "stop") == (record.completion_ids[-1] == stop)
        if record.finish_reason == "length":
            assert len(record.completion_ids) == (12 if sampler.trained else 40)
    assert {record.finish_reason for record in records} == {"stop", "length"}


@samplers("layer-R2")
def test_a_stop_token_at_once_gives_a_completion_of_one_token(sampler: Any, gaps: Any) -> None:
    sampler.sync()
    (drawn,) = sampler.sample([[1, 2, 3]])
    stop = drawn.completion_ids[0]
    sampler.engine.reset_prefix_cache()
    (record,) = sampler.engine.generate([[1, 2, 3]], Sampling(16, (stop,)), seed=0)
    assert record.completion_ids == (stop,) and record.finish_reason == "stop"
    assert len(record.logprobs) == 1 and record.states.shape == (3, 64)
    assert gaps(sampler.model, [record]).penultimate < EXACT


def test_only_the_stop_tokens_asked_for_end_a_completion(make_model: Callable[..., Any]) -> None:
    model = make_model("layer-R2", eos_token_id=5)
    engine = RolloutEngine(model.config, max_model_len=WINDOW, max_num_seqs=16)
    engine.sync_weights(model.named_parameters(), 0)
    records = engine.generate([[1]] * 16, Sampling(64, ()), seed=0)
    assert any(5 in record.completion_ids[:-1] for record in records)
    assert {record.finish_reason for record in records} == {"length"}
    engine.close()


# Randomness


@samplers("layer-R2")
def test_a_seed_and_a_reset_prefix_cache_give_the_same_rollout_bit_for_bit(sampler: Any) -> None:
    sampler.sync()
    prompts = sampler.prompts([3, 70, 40] * 8)
    first = sampler.sample(prompts, seed=5)
    sampler.engine.reset_prefix_cache()
    assert same(first, sampler.sample(prompts, seed=5))
    sampler.engine.reset_prefix_cache()
    torch.manual_seed(99)  # the trainer's own draws do not matter
    sampler.sample(sampler.prompts([9]), seed=6)
    sampler.engine.reset_prefix_cache()
    assert same(first, sampler.sample(prompts, seed=5))
    engine = sampler.engine
    sampler.close()
    sampler.sync()
    assert sampler.engine is not engine
    assert same(first, sampler.sample(prompts, seed=5))


@samplers("layer-R2")
def test_another_seed_draws_differently(sampler: Any) -> None:
    sampler.sync()
    prompts = sampler.prompts([3, 3, 40])
    first = [record.completion_ids for record in sampler.sample(prompts, seed=0)]
    for seed in (1, 2**62 + 1, rollout_seed(0, 1, 0)):
        sampler.engine.reset_prefix_cache()
        assert [record.completion_ids for record in sampler.sample(prompts, seed=seed)] != first


@samplers("layer-R2")
def test_the_samples_of_one_prompt_differ(sampler: Any) -> None:
    sampler.sync()
    records = sampler.sample(sampler.prompts([40]) * 16)
    assert len({record.completion_ids for record in records}) == 16


@samplers("layer-R2")
def test_starting_and_sampling_leave_the_trainers_random_states_alone(sampler: Any) -> None:
    sampler.close()
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    assert sampler.engine is not None  # starts it
    sampler.sync()
    sampler.sample(sampler.prompts([3, 40]))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[1], strict=True))
    assert random.getstate() == before[2]


def test_random_states_are_put_back_after_an_error_too() -> None:
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    with pytest.raises(KeyError), preserved_random_state():
        torch.rand(3), np.random.rand(3), random.random()
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[1], strict=True))
    assert random.getstate() == before[2]


def test_every_seed_step_rank_and_rollout_of_a_step_has_a_stream_of_its_own() -> None:
    seeds = {rollout_seed(*key) for key in product(range(8), range(8), range(8), range(3))}
    assert len(seeds) == len({seed % 2**32 for seed in seeds}) == 8 * 8 * 8 * 3  # torch's CPU generator reads 32 bits
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert rollout_seed(0, 0, 0) != rollout_seed(0, 0, 1) != rollout_seed(0, 1, 0) != rollout_seed(1, 0, 0)
    assert rollout_seed(42, 3, 1) == 5430396998017525854  # runs that were recorded must stay repeatable


# Preemption


@samplers("layer-R2-small-cache")
def test_a_preempted_request_is_counted_and_sampled_again(sampler: Any, gaps: Any) -> None:
    sampler.sync()
    sampler.engine.preempted = 0
    prompts = sampler.prompts([20] * 10)
    records = sampler.sample(prompts, max_tokens=60)
    assert 0 < sampler.engine.preempted == len(sampler.outputs) - len(prompts)
    assert [list(record.prompt_ids) for record in records] == prompts
    assert gaps(sampler.model, records).penultimate < EXACT
    kept = [output for output in sampler.outputs if not output.kv_transfer_params["preemptions"]]
    assert len(kept) == len(records)


@samplers("layer-R2-small-cache")
def test_requests_that_are_preempted_again_and_again_give_an_error_that_says_what_to_do(sampler: Any) -> None:
    sampler.sync()
    with pytest.raises(RolloutError, match=rf"of 12 requests .* preempted {MAX_TRIES} times.*kv_cache_memory_bytes"):
        sampler.engine.generate(sampler.prompts([30] * 12), Sampling(120, ()), seed=0)
    assert len(sampler.sample([[1, 2]])) == 1  # the engine is still usable


def test_the_default_cache_has_room_for_every_sequence_at_full_length(make_model: Callable[..., Any]) -> None:
    engine = RolloutEngine(make_model("layer-R2").config, max_model_len=64, max_num_seqs=512)
    blocks = engine.llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    assert blocks > 512 * 64 // 32
    engine.close()


# Syncs


@samplers("layer-R2", "rms-R2")
def test_every_tensor_that_a_sync_changes_arrives(sampler: Any, gaps: Any) -> None:
    prompts = sampler.prompts([3, 40])
    names = [name for name, _ in sampler.model.named_parameters()]
    assert ("lm_head.weight" in names) == (not sampler.model.config.tie_word_embeddings)
    generator = torch.Generator().manual_seed(0)
    sampler.sync()
    for version, name in enumerate(names, start=1):
        changed = type(sampler.model)(sampler.model.config).eval()
        changed.load_state_dict(sampler.model.state_dict())
        with torch.no_grad():
            tensor = changed.get_parameter(name)
            tensor.add_(torch.randn(tensor.shape, generator=generator) * tensor.square().mean().sqrt())
        sampler.sync(changed, version)
        records = sampler.sample(prompts)
        assert gaps(changed, records).penultimate < EXACT, name
        assert gaps(sampler.model, records).penultimate > 1e-3, name
    sampler.sync()
    assert gaps(sampler.model, sampler.sample(prompts)).penultimate < EXACT


@samplers("layer-R2", "rms-R2")
def test_a_state_dict_can_be_synced_too(sampler: Any, gaps: Any, make_model: Callable[..., Any]) -> None:
    sampler.sync()
    changed = make_model("layer-R2" if sampler.model.config.tie_word_embeddings else "rms-R2", seed=1)
    sampler.engine.sync_weights(changed.state_dict().items(), 1)
    assert gaps(changed, sampler.sample(sampler.prompts([3, 40]))).penultimate < EXACT


@samplers("layer-R2")
def test_a_sync_copies_the_weights(sampler: Any) -> None:
    sampler.sync()
    first = sampler.sample([[1, 2, 3]])
    with torch.no_grad():
        saved = {name: parameter.clone() for name, parameter in sampler.model.named_parameters()}
        for parameter in sampler.model.parameters():
            parameter.mul_(2)
    sampler.engine.reset_prefix_cache()
    second = sampler.sample([[1, 2, 3]])
    sampler.model.load_state_dict(saved, strict=False)
    assert same(first, second)


@samplers("layer-R2")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights[:-1], "was not given 1 of its tensors: model.norm.weight"),
        (lambda weights: [*weights, ("model.gate.weight", torch.zeros(1))], "has no tensor 'model.gate.weight'"),
    ],
)
def test_a_sync_that_lacks_a_tensor_or_has_an_unknown_one_is_refused(sampler: Any, change: Any, message: str) -> None:
    sampler.sync()
    with pytest.raises(ValueError, match=message):
        sampler.engine.sync_weights(change(list(sampler.model.named_parameters())), 1)


# One engine per process, and its end


@samplers("layer-R2")
def test_starting_an_engine_closes_the_one_before(sampler: Any, start: Any, gaps: Any) -> None:
    sampler.sync()
    first = sampler.engine
    other = start("layer-R2")
    other.sync()
    assert first.closed
    for use in (lambda: first.generate([[1]], Sampling(2, ()), 0), first.reset_prefix_cache):
        with pytest.raises(RolloutError, match="engine is closed"):
            use()
    assert gaps(other.model, other.sample(other.prompts([3, 40]))).penultimate < EXACT
    first.close()  # closing twice does nothing, to the other one neither
    assert len(other.sample([[1]])) == 1


@samplers("layer-R2")
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, IndexError])
def test_an_engine_that_was_interrupted_says_so_instead_of_waiting_forever(
    sampler: Any, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    sampler.sync()
    engine = sampler.engine
    steps = iter([engine.llm.llm_engine.step] * 5)

    def step() -> Any:
        if (real := next(steps, None)) is None:
            raise interruption
        return real()

    monkeypatch.setattr(engine.llm.llm_engine, "step", step)
    with pytest.raises(interruption):
        engine.generate([[1, 2]] * 3, Sampling(16, ()), 0)
    with pytest.raises(RolloutError, match=r"did not finish\. Start a new one"):
        engine.generate([[1, 2]], Sampling(16, ()), 0)
    with pytest.raises(RolloutError, match=r"did not finish\. Start a new one"):
        engine.sync_weights(sampler.model.named_parameters(), 1)


@samplers("layer-R2")
def test_closing_frees_the_cache(make_model: Callable[..., Any], sampler: Any) -> None:
    sampler.close()

    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    before = resident()
    engine = RolloutEngine(make_model("layer-R2").config, max_model_len=WINDOW, kv_cache_memory_bytes=512 << 20)
    assert resident() - before > 400 << 20
    engine.close()
    assert resident() - before < 100 << 20


@samplers("layer-R2")
def test_an_engine_leaves_the_trainers_process_as_it_was(
    sampler: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler.close()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    set_num_threads, filters = torch.set_num_threads, list(warnings.filters)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        sampler.sync()
        assert torch.set_num_threads is set_num_threads
        assert warnings.filters == filters
        assert os.environ["LOCAL_WORLD_SIZE"] == "2"
        sampler.close()
        assert torch.distributed.is_initialized()
        ones = torch.ones(2)
        torch.distributed.all_reduce(ones)
        assert ones.tolist() == [1, 1]
    finally:
        torch.distributed.destroy_process_group()
