"""The engine exports what the exit gate says, and stops early where it says so, by the published formula in fp64."""

from typing import Any

import pytest
import torch

from looprl.errors import UserError
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.sampling import Sampling
from tests.published import random_published
from tests.rollout.test_parity import other_weights

LOOPS = 4


def make_ouro() -> Any:
    model = random_published("ouro", total_ut_steps=LOOPS)
    with torch.no_grad():
        model.model.early_exit_gate.weight *= 2
        model.model.early_exit_gate.bias.fill_(-1.0)
    return model


def engine_of(model: Any, **options: Any) -> RolloutEngine:
    engine = RolloutEngine(model.config, state_kind="gate", max_model_len=96, max_num_seqs=8, **options)
    engine.sync_weights(model.named_parameters(), 0)
    return engine


def sample(engine: RolloutEngine, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(96, (length,), generator=generator).tolist() for length in (1, 17, 40)]
    return engine.generate(prompts * 2, Sampling(16, (96,)), seed)


@torch.no_grad()
def by_the_formula(model: Any, record: Any, threshold: float | None) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Gate logits [T, R] and log-probs [G] in fp64, from one run per depth, and the loop that reads out each token."""
    model = model.double()
    ids = torch.tensor([[*record.prompt_ids, *record.completion_ids]])
    runs = [model(ids[:, :-1], num_loops=loops) for loops in range(1, LOOPS + 1)]
    gate = torch.stack([model.model.early_exit_gate(output.state)[0, :, 0] for output in runs], dim=-1)
    logps, stops = [], []
    for place in range(len(record.prompt_ids) - 1, ids.shape[1] - 1):
        stop, left, total = LOOPS, 1.0, 0.0
        for loop in range(1, LOOPS):
            share = left / (1 + float(torch.exp(-gate[place, loop - 1])))
            left, total = left - share, total + share
            if threshold is not None and total >= threshold:
                stop = loop
                break
        stops.append(stop)
        logps.append(runs[stop - 1].logits[0, place].log_softmax(-1)[ids[0, place + 1]])
    return gate, torch.stack(logps), stops


@pytest.fixture(scope="module", params=[None, 0.3, 0.6, 1.0])
def sampled(request: pytest.FixtureRequest) -> Any:
    model = make_ouro()
    engine = engine_of(model, kv_policy="per_loop", exit_threshold=request.param)
    records = sample(engine)
    engine.sync_weights((changed := other_weights(model, step=0.3)).named_parameters(), 1)
    yield request.param, [(model, records), (changed, sample(engine, seed=1))]
    engine.close()


def test_gate_logits_and_log_probs_of_early_exit_are_those_of_the_formula_after_a_sync_too(sampled: Any) -> None:
    threshold, pairs = sampled
    for model, records in pairs:
        seen = set()
        for record in records:
            gate, logps, stops = by_the_formula(model, record, threshold)
            assert record.state_kind == "gate" and not record.states[:, LOOPS:].any()
            torch.testing.assert_close(record.states[:, :LOOPS].double(), gate, rtol=0, atol=1e-4)
            torch.testing.assert_close(record.logprobs.double(), logps, rtol=0, atol=1e-4)
            seen |= set(stops)
        assert seen == {LOOPS} if threshold in (None, 1.0) else len(seen) > 1


def test_a_family_without_a_gate_is_refused_before_anything_starts() -> None:
    config = random_published("huginn").config
    for options in (dict(state_kind="gate"), dict(exit_threshold=0.5)):
        with pytest.raises(UserError, match="needs a model with an exit gate; Huginn"):
            RolloutEngine(config, max_model_len=96, **options)
