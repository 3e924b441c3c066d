"""vLLM starts the loops from the drawn states that its records name, and the trainer's own loops start there too."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from looprl.errors import UserError
from looprl.gradients import Estimator
from looprl.models.initial_state import drawn_initial_state, drawn_states
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.random_state import initial_state_seed, rollout_seed
from looprl.rollout.record import RolloutRecord
from tests.published import random_published
from tests.rollout.conftest import padded
from tests.rollout.test_parity import decode_again, other_weights
from tests.rollout.test_published_parity import BROKEN, EXACT, sample

CASES = [
    ("huginn", "per_loop", {}),
    ("llama", "per_loop", dict(max_num_batched_tokens=24)),
    ("parcae", "per_loop", {}),
    ("olmo2", "terminal", {}),
]
LENGTHS = [1, 17, 33, 64, 90]
RUN_SEED = 3


def cases(*names: str) -> Any:
    params = [pytest.param(case, id=f"{case[0]}-{case[1]}") for case in CASES if not names or case[0] in names]
    return pytest.mark.parametrize("rollout", params, indirect=True, scope="module")


PER_LOOP = ("huginn", "llama", "parcae")


@pytest.fixture(scope="module")
def rollout(request: pytest.FixtureRequest) -> Any:
    """A model of that K/V policy, and an engine that has its weights and draws initial states."""
    name, policy, options = request.param
    model = random_published(name, kv_policy=policy)
    engine = start(model, **options)
    yield model, engine
    engine.close()


def start(model: Any, **options: Any) -> RolloutEngine:
    settings = dict(kv_policy=model.config.kv_policy, initial_state="drawn", seed=RUN_SEED, max_model_len=160)
    return RolloutEngine(model.config, **(settings | dict(max_num_seqs=8) | options))


@torch.no_grad()
def recomputed_gap(model: Any, records: Sequence[RolloutRecord], preset: str, seed: int | None) -> float:
    """Largest difference between the sampler's log-probs and those of the trainer's loops from the seed's states."""
    ids, mask, prompts, completions = padded(records)
    z_0 = drawn_initial_state(model.config, seed, ids[:, :-1], mask[:, :-1])
    estimator = Estimator.preset(preset, neumann_steps=0, loops_recorded=2)
    logits = model(
        ids[:, :-1], mask[:, :-1], initial_state=z_0, loop_runner=estimator, logits_to_keep=completions
    ).logits
    logps = logits.log_softmax(dim=-1).gather(-1, ids[:, prompts:, None]).squeeze(-1)
    return max(
        (row[: len(record.logprobs)] - record.logprobs).abs().max().item()
        for row, record in zip(logps, records, strict=True)
    )


def seed_of(records: Sequence[RolloutRecord]) -> int:
    (seed,) = {record.initial_state_seed for record in records}
    assert seed is not None
    return seed


@cases()
def test_replay_from_the_penultimate_state_gives_the_sampler_s_logprobs(rollout: Any, gaps: Any) -> None:
    model, engine = rollout
    engine.sync_weights(model.named_parameters(), 0)
    records = sample(model, engine, LENGTHS)
    found = gaps(model, records)
    assert found.penultimate < EXACT and found.endpoint > BROKEN
    # prefix-cached prompts, and another order
    assert gaps(model, sample(model, engine, LENGTHS[::-1] * 2)).penultimate < EXACT


@cases(*PER_LOOP)
@pytest.mark.parametrize("preset", ["recompute", "truncated", "full"])
def test_the_trainer_s_own_loops_from_the_recorded_seed_give_the_sampler_s_logprobs(rollout: Any, preset: str) -> None:
    model, engine = rollout
    engine.sync_weights(model.named_parameters(), 0)
    first = sample(model, engine, LENGTHS)
    cached = sample(model, engine, LENGTHS[::-1] * 2)
    assert seed_of(first) == seed_of(cached) == initial_state_seed(RUN_SEED, 0)
    for records in (first, cached):
        assert recomputed_gap(model, records, preset, seed_of(records)) < EXACT
        assert recomputed_gap(model, records, preset, seed_of(records) + 1) > BROKEN
        assert recomputed_gap(model, records, preset, None) > BROKEN


@cases(*PER_LOOP)
def test_a_sync_draws_new_states_and_the_record_names_them(rollout: Any) -> None:
    model, engine = rollout
    changed = other_weights(model, step=0.3)
    engine.sync_weights(model.named_parameters(), 1)
    before = sample(model, engine, LENGTHS)
    engine.sync_weights(changed.named_parameters(), 2)
    after = sample(model, engine, LENGTHS)
    assert (seed_of(before), seed_of(after)) == tuple(initial_state_seed(RUN_SEED, version) for version in (1, 2))
    assert recomputed_gap(model, before, "full", seed_of(before)) < EXACT
    assert recomputed_gap(changed, after, "full", seed_of(after)) < EXACT
    assert recomputed_gap(changed, after, "full", seed_of(before)) > BROKEN
    assert recomputed_gap(model, after, "full", seed_of(after)) > BROKEN


@cases("olmo2", "huginn")
def test_states_and_logprobs_are_those_of_cached_decoding_from_the_recorded_seed(rollout: Any) -> None:
    model, engine = rollout
    engine.sync_weights(model.named_parameters(), 3)
    (record,) = sample(model, engine, [20], seed=2)
    seed = seed_of([record])

    def decoded(seed: int) -> tuple[Tensor, Tensor]:
        table = drawn_states(model.config, seed, 160)
        logprobs, penultimate, _ = decode_again(model, record, chunk=20, initial_states=table)
        return logprobs, penultimate

    logprobs, penultimate = decoded(seed)
    torch.testing.assert_close(record.states, penultimate, rtol=0, atol=1e-4)
    torch.testing.assert_close(record.logprobs, logprobs, rtol=0, atol=1e-4)
    assert (decoded(seed + 1)[0] - record.logprobs).abs().max() > BROKEN


@cases("huginn")
def test_a_sync_leaves_the_states_where_a_captured_graph_reads_them(rollout: Any) -> None:
    model, engine = rollout

    def place_and_values(twin: Any) -> tuple[int, Tensor]:
        return twin.model.initial_states.data_ptr(), twin.model.initial_states.clone()

    found = []
    for version in (4, 5):
        engine.sync_weights(model.named_parameters(), version)
        found += engine.llm.apply_model(place_and_values)
    (place, earlier), (same_place, later) = found
    assert place == same_place and not torch.equal(earlier, later)
    assert torch.equal(later, drawn_states(model.config, initial_state_seed(RUN_SEED, 5), 160))


@cases("huginn")
def test_another_engine_of_the_same_run_draws_the_same_and_one_of_another_run_does_not(rollout: Any) -> None:
    model, engine = rollout
    engine.sync_weights(model.named_parameters(), 6)
    records = sample(model, engine, LENGTHS)
    for seed, is_same in ((RUN_SEED, True), (RUN_SEED + 1, False)):
        again = start(model, seed=seed)
        again.sync_weights(model.named_parameters(), 6)
        repeated = sample(model, again, LENGTHS)
        assert (seed_of(repeated) == seed_of(records)) == is_same
        for one, other in zip(records, repeated, strict=True):
            assert torch.equal(one.states[0], other.states[0]) == is_same
            assert (one.completion_ids == other.completion_ids) or not is_same
        again.close()


def test_a_family_without_a_published_distribution_is_refused_before_vllm_starts(make_model: Any) -> None:
    with pytest.raises(UserError, match="looplm publishes no distribution of initial states"):
        start(make_model("layer-R2"))


def test_seeds_of_runs_versions_and_rollouts_differ() -> None:
    seeds = {initial_state_seed(seed, version) for seed in range(20) for version in range(50)}
    assert len(seeds) == 1000 and all(0 <= seed < 2**63 for seed in seeds)
    of_rollouts = {rollout_seed(s, v, rank, i) for s in range(20) for v in range(50) for rank in (0, 1) for i in (0, 1)}
    assert len(of_rollouts) == 4000 and not seeds & of_rollouts
