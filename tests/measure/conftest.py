"""Random LoopLMs, one whose core is a known linear map, and rollout-like batches and texts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from looprl.data.documents import Document, TokenBatch, batches_of
from looprl.measure.policy_gradient import PolicyBatch
from looprl.models import LoopedForCausalLM, LoopLMConfig, LoopLMForCausalLM
from looprl.models.loop import Core

PAD = 0
DOCUMENTS = (
    Document((3, 1, 4, 1, 5, 9, 2), 3),
    Document((6, 5, 3, 5), 2),
    Document((8, 9, 7, 9, 3), 1),
)


class LinearCore(Core):
    """z -> A z + e, each token by itself."""

    def __init__(self, matrix: Tensor):
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    def loop(self, state, injected, *context):
        return state @ self.matrix.T + injected


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


@pytest.fixture
def tiny_model(looplm) -> Callable[..., LoopedForCausalLM]:
    """An 8 wide LoopLM in double precision, R = 3, from LoopLMConfig keys; with `matrix` its core is that map."""

    def make(matrix: Tensor | None = None, **settings) -> LoopedForCausalLM:
        tiny = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_loops=3)
        model = looplm(**tiny | settings).double().eval()
        if matrix is not None:
            model.model.core = LinearCore(matrix.double())
        return model

    return make


@pytest.fixture
def token_batch() -> TokenBatch:
    """Three documents of 7, 4 and 5 tokens with prompts of 3, 2 and 1: padding on both sides."""
    (batch,) = batches_of(DOCUMENTS, 3, PAD)
    return batch


@pytest.fixture
def other_batch(token_batch) -> TokenBatch:
    """Other tokens in the same places."""
    return replace(token_batch, input_ids=(token_batch.input_ids + 4) % 11)


@pytest.fixture
def token_rows() -> list[tuple[Tensor, slice, int]]:
    """Each document of `token_batch`: its ids [1, T], its columns in the batch, its prompt's length."""
    longest = max(document.prompt_length for document in DOCUMENTS)
    rows = []
    for document in DOCUMENTS:
        first = longest - document.prompt_length
        columns = slice(first, first + len(document.token_ids))
        rows.append((torch.tensor([document.token_ids]), columns, document.prompt_length))
    return rows
