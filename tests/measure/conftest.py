"""Tiny looped models in double precision: random ones, and one whose core is a known linear map."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from looprl.data.documents import Document, TokenBatch, batches_of
from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.models.contract import Core

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


@pytest.fixture
def tiny_model() -> Callable[..., LoopLMForCausalLM]:
    """tiny_model(seed=0, **config); tiny_model(matrix=A) has the linear core."""

    def make(seed: int = 0, matrix: Tensor | None = None, **config) -> LoopLMForCausalLM:
        torch.manual_seed(seed)
        shape = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_attention_heads=2, num_loops=3)
        model = LoopLMForCausalLM(LoopLMConfig(**shape | config)).double().eval()
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
def token_rows() -> list[tuple[Tensor, slice, int]]:
    """Each document of `token_batch`: its ids [1, T], its columns in the batch, its prompt's length."""
    longest = max(document.prompt_length for document in DOCUMENTS)
    rows = []
    for document in DOCUMENTS:
        first = longest - document.prompt_length
        columns = slice(first, first + len(document.token_ids))
        rows.append((torch.tensor([document.token_ids]), columns, document.prompt_length))
    return rows
