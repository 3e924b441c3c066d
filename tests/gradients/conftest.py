"""Tiny LoopLMs in double precision, and a policy-gradient loss to differentiate."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from looprl.gradients import AdjointSolver, replay
from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.models.loop import LoopRunner, run_loops

# Both contract: at their fixed points J has a spectral radius of .64 and .46.
CONTRACTING = {
    "orthogonal": dict(injection="orthogonal", seed=1),
    "linear": dict(injection="linear", norm_placement="pre", initializer_scale=0.5, tie_word_embeddings=False),
}


@pytest.fixture(params=CONTRACTING.values(), ids=CONTRACTING)
def model(request) -> LoopLMForCausalLM:
    """A contracting model of either injection, with random weights in the norms and the injection too."""
    settings = dict(request.param)
    torch.manual_seed(settings.pop("seed", 0))
    config = LoopLMConfig(
        vocab_size=11, hidden_size=8, intermediate_size=12, num_attention_heads=2, num_loops=6, **settings
    )
    model = LoopLMForCausalLM(config).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model


@dataclass(frozen=True)
class PolicyBatch:
    """Left-padded rows, and the coefficient of the log-prob of each row's tokens; all [B, T]."""

    input_ids: Tensor
    attention_mask: Tensor
    coefficients: Tensor

    def loss(
        self,
        model: LoopLMForCausalLM,
        runner: LoopRunner = run_loops,
        num_loops: int | None = None,
        state: Tensor | None = None,
    ) -> Tensor:
        """Mean over rows of - sum of coefficient x log-prob; `state` [B, T - 1, d] is what the runner starts from."""
        output = model(
            self.input_ids[:, :-1],
            self.attention_mask[:, :-1],
            num_loops=num_loops,
            initial_state=state,
            loop_runner=runner,
        )
        logps = output.logits.log_softmax(-1).gather(-1, self.input_ids[:, 1:, None]).squeeze(-1)
        return -(logps * self.coefficients[:, 1:]).sum(-1).mean()

    def gradients(self, model: LoopLMForCausalLM, *loss_arguments, **loss_settings) -> dict[str, Tensor]:
        """Gradient of the loss by parameter; zero where backpropagation left none."""
        model.zero_grad(set_to_none=True)
        self.loss(model, *loss_arguments, **loss_settings).backward()
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for name, parameter in model.named_parameters()
        }

    @torch.no_grad()
    def state(self, model: LoopLMForCausalLM, num_loops: int) -> Tensor:
        """The trainer's own state after `num_loops` loops, 0 included, from the full sequence."""
        ids, mask = self.input_ids[:, :-1], self.attention_mask[:, :-1]
        if num_loops == 0:
            return model.model.initial_state(model.model.prelude(ids, mask))
        return model(ids, mask, num_loops=num_loops).state

    def rows(self) -> Iterator[tuple["PolicyBatch", Callable[[Tensor], Tensor]]]:
        """Each row as a batch of its own without padding, and what takes its part of a [B, T - 1, d] state."""
        for i, mask in enumerate(self.attention_mask.bool()):
            first = int(mask.long().argmax())
            parts = (self.input_ids, self.attention_mask, self.coefficients)
            yield (
                PolicyBatch(*(part[i : i + 1, first:] for part in parts)),
                lambda state, i=i, first=first: state[i : i + 1, first:],
            )


@pytest.fixture
def policy_batch() -> type[PolicyBatch]:
    return PolicyBatch


@pytest.fixture
def batch() -> PolicyBatch:
    """Three rows of 6, 4 and 5 tokens, the last three of each with positive and negative advantages."""
    return PolicyBatch(
        input_ids=torch.tensor([[3, 1, 4, 1, 5, 9], [0, 0, 2, 6, 5, 3], [0, 5, 8, 9, 7, 9]]),
        attention_mask=torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]]),
        coefficients=torch.tensor([[0, 0, 0, 1.5, 1, 0.5], [0, 0, 0, -1, -0.5, -1.5], [0, 0, 0, 0.5, 0.5, 0]]).double(),
    )


class Loop:
    """One loop at a state near the fixed point: everything that the tests need of it."""

    def __init__(self, model, batch, loops_before=5):
        ids, mask = batch.input_ids, batch.attention_mask
        self.core, self.parameters = model.model.core, list(model.model.core.parameters())
        with torch.no_grad():
            self.context = model.model.context(ids, mask)
            self.injected = model.model.prelude(ids, mask)
            self.state = model(ids, mask, num_loops=loops_before).state
        torch.manual_seed(2)
        self.cotangent = torch.randn_like(self.state)

    def apply(self, state, injected=None, **settings):
        return self.core(state, self.injected if injected is None else injected, *self.context, **settings)

    def replay(self, steps, state=None, injected=None):
        state = self.state if state is None else state
        return self.apply(state, injected, record=partial(replay, solver=AdjointSolver(steps)))

    def dense_jacobian(self):
        """J [B T d, B T d], over all tokens of all rows."""
        size = self.state.numel()
        return torch.autograd.functional.jacobian(self.apply, self.state).reshape(size, size)

    def product(self):
        """u -> J^T u on one recorded graph."""
        start = self.state.clone().requires_grad_()
        output = self.apply(start)
        return lambda vector: torch.autograd.grad(output, start, vector, retain_graph=True)[0]


@pytest.fixture
def loop(model, batch) -> Loop:
    return Loop(model, batch)


def partial_sum(matrix, vector, steps):
    """Sum of the powers 0..steps of the matrix, times the vector."""
    powers = (torch.linalg.matrix_power(matrix, k) @ vector.flatten() for k in range(steps + 1))
    return sum(powers).view_as(vector)
