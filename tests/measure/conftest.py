"""Random LoopLMs and rollout-like batches for the measurements of gradients."""

from collections.abc import Callable

import pytest
import torch

from looprl.measure.policy_gradient import PolicyBatch
from looprl.models import LoopedForCausalLM, LoopLMConfig, LoopLMForCausalLM


@pytest.fixture(scope="session")
def looplm() -> Callable[..., LoopedForCausalLM]:
    """A random LoopLM, 64 wide unless told otherwise, from LoopLMConfig keys."""

    def make(seed: int = 0, **settings) -> LoopedForCausalLM:
        torch.manual_seed(seed)
        width = settings.setdefault("hidden_size", 64)
        settings = dict(vocab_size=512, intermediate_size=2 * width, num_attention_heads=2) | settings
        return LoopLMForCausalLM(LoopLMConfig(**settings))

    return make


@pytest.fixture(scope="session")
def rollouts() -> Callable[..., PolicyBatch]:
    """Random tokens and advantages with the model's own states after R - 1 and R loops, as a PolicyBatch."""

    def make(model: LoopedForCausalLM, num_loops: int, rows: int = 8, prompt: int = 16, completion: int = 32):
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(3, model.config.vocab_size, (rows, prompt + completion), generator=generator)
        advantages = torch.randn(rows, 1, generator=generator)
        with torch.no_grad():
            outputs = [model(ids[:, :-1], num_loops=loops) for loops in (max(num_loops - 1, 1), num_loops)]
        logps = outputs[1].logits[:, -completion:].log_softmax(-1).gather(-1, ids[:, -completion:, None])
        return PolicyBatch(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            weights=advantages.expand(rows, completion) / (rows * completion),
            states={"penultimate": outputs[0].state, "endpoint": outputs[1].state},
            sampler_logps=logps.squeeze(-1),
        )

    return make
