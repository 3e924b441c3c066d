"""On a GPU, eagerly and with CUDA graphs, replay reproduces the sampler within fp32 rounding of other kernels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from looprl.rollout.engine import RolloutEngine
from looprl.rollout.sampling import Sampling

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "cuda-graphs"])
def test_replay_from_penultimate_state_matches_the_sampler(
    enforce_eager: bool, make_model: Callable[..., Any], gaps: Callable[..., Any]
) -> None:
    model = make_model("layer-R6")
    options = dict(max_model_len=160, max_num_seqs=8, gpu_memory_utilization=0.2, enforce_eager=enforce_eager)
    engine = RolloutEngine(model.config, num_loops=6, **options)
    try:
        engine.sync_weights(model.cuda().named_parameters(), 0)
        generator = torch.Generator().manual_seed(1)
        prompts = [torch.randint(96, (length,), generator=generator).tolist() for length in (1, 17, 33, 90, 90)]
        records = engine.generate(prompts, Sampling(24, (96,)), seed=0)
    finally:
        engine.close()
    assert gaps(model.cpu(), records).penultimate < 1e-3
