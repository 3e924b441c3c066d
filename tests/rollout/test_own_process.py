"""An engine in a process of its own: the same parity as in the trainer's, and nothing left behind when it closes."""

from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch

from looprl.rollout.engine import RolloutEngine
from looprl.rollout.record import RolloutRecord
from looprl.rollout.safetensors_bytes import pack, unpack
from looprl.rollout.sampling import RolloutError, Sampling

NAME = "layer-R2"
LENGTHS = [1, 17, 33, 70, 70, 90]


def sampled(engine: RolloutEngine, model: Any, seed: int = 0) -> list[RolloutRecord]:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(96, (length,), generator=generator).tolist() for length in LENGTHS]
    prompts[4] = prompts[3]
    engine.sync_weights(model.named_parameters(), seed)
    return engine.generate(prompts, Sampling(12, (96,)), seed)


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Any]) -> Any:
    return make_model(NAME)


@pytest.fixture(scope="module")
def engine(model: Any) -> Iterator[RolloutEngine]:
    engine = RolloutEngine(model.config, num_loops=2, max_model_len=160, max_num_seqs=8, own_process=True)
    yield engine
    engine.close()


def test_replay_from_penultimate_state_matches_the_sampler_after_each_sync(
    engine: RolloutEngine, model: Any, gaps: Callable[..., Any], make_model: Callable[..., Any]
) -> None:
    other = make_model(NAME, seed=3)
    for weights in (model, other, model):
        assert gaps(weights, sampled(engine, weights)).penultimate < 1e-5
    assert gaps(other, sampled(engine, model)).penultimate > 1e-2


def test_a_single_prompt_draws_by_its_seed(engine: RolloutEngine, model: Any) -> None:
    def drawn(seed: int) -> RolloutRecord:
        engine.reset_prefix_cache()
        return engine.generate([[5, 6, 7]], Sampling(12, (96,)), seed)[0]

    engine.sync_weights(model.named_parameters(), 0)
    first, other, again = drawn(0), drawn(1), drawn(0)
    assert first.completion_ids == again.completion_ids != other.completion_ids
    assert torch.equal(first.logprobs, again.logprobs) and torch.equal(first.states, again.states)


def test_closing_ends_its_processes(engine: RolloutEngine, model: Any) -> None:
    started = [process for process in psutil.Process().children(recursive=True) if "EngineCore" in process.name()]
    assert started
    engine.close()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
    with pytest.raises(RolloutError, match="closed"):
        sampled(engine, model)


def test_tensors_cross_as_bytes_unchanged() -> None:
    tensors = {"a": torch.randn(3, 4).t(), "b": torch.randn(2).bfloat16(), "c": torch.zeros(0, 5)}
    for name, tensor in unpack(pack(tensors)).items():
        assert tensor.dtype == tensors[name].dtype and torch.equal(tensor, tensors[name])
