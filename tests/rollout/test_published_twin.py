"""The twin's forward pass is one graph, which vLLM needs to compile it: no family's modules break it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from looprl.rollout.vllm_published import PublishedModel
from tests.published import MODELS, random_published


class Paged(nn.Module):
    """In the place of vLLM's paged attention, which is opaque to the compiler."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return queries + keys.mean() + values.mean()


class Inner(nn.Module):
    """`PublishedModel` without an engine."""

    forward = PublishedModel.forward

    def __init__(self, model: Any, banks: int, exit_threshold: float | None, initial_states: Tensor | None):
        super().__init__()
        self.initial_states = initial_states
        self.exit_threshold, self.reads_gate = exit_threshold, exit_threshold is not None
        self.looped, self.num_loops = model.model, model.config.num_loops
        layers = range(model.config.num_hidden_layers)
        self.paged = nn.ModuleList(nn.ModuleList(Paged() for _ in range(banks)) for _ in layers)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(("name", "exit_threshold"), [*((name, None) for name in MODELS), ("ouro", 0.5)])
@torch.inference_mode()
def test_the_forward_pass_compiles_without_a_break_and_for_any_number_of_tokens(
    name: str, exit_threshold: float | None, drawn: bool
) -> None:
    model = random_published(name)
    states = torch.randn(16, model.config.hidden_size) if drawn else None
    inner = Inner(model, banks=2, exit_threshold=exit_threshold, initial_states=states)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(disable=False):
        compiled = torch.compile(inner, fullgraph=True, backend="eager", dynamic=True)
        for count in (7, 9):
            ids, positions = torch.arange(count) * 5 % 97, torch.arange(count)
            for found, expected in zip(compiled(ids, positions), inner(ids, positions), strict=True):
                assert torch.equal(found, expected)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
