"""How the injected input enters the core."""

import pytest
import torch

from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.models.injection import LinearInjection, OrthogonalInjection, make_injection

D = 8


@pytest.fixture
def orthogonal() -> OrthogonalInjection:
    torch.manual_seed(0)
    injection = OrthogonalInjection(D, 0.5).double()
    torch.nn.init.normal_(injection.diagonal_logit)
    return injection


def states_and_inputs(scale=1.0):
    torch.manual_seed(1)
    return torch.randn(3, 5, D, dtype=torch.float64), scale * torch.randn(3, 5, D, dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_what_the_orthogonal_injection_adds_along_e_is_exactly_e(orthogonal, scale):
    state, injected = states_and_inputs(scale)
    result = orthogonal(state, injected)
    square = injected.square().sum(-1)
    along = (result * injected).sum(-1) / square
    of_state = (torch.sigmoid(orthogonal.diagonal_logit) * state * injected).sum(-1) / square
    assert of_state.abs().max() > 1e-2
    left_by_eps = of_state * orthogonal.eps / (square + orthogonal.eps)
    torch.testing.assert_close(along, 1 + left_by_eps, rtol=0, atol=1e-12)
    if scale >= 1:
        torch.testing.assert_close(along, torch.ones_like(along), rtol=0, atol=1e-6)


def test_the_orthogonal_injection_equals_its_dense_formula(orthogonal):
    state, injected = states_and_inputs()
    diagonal = torch.diag(torch.sigmoid(orthogonal.diagonal_logit))
    result = orthogonal(state, injected)
    for z, e, x in zip(state.view(-1, D), injected.view(-1, D), result.view(-1, D), strict=True):
        removal = torch.eye(D, dtype=torch.float64) - torch.outer(e, e) / (e @ e + 1e-6)
        torch.testing.assert_close(x, removal @ (diagonal @ z) + e, rtol=0, atol=1e-12)


def test_without_input_the_orthogonal_injection_is_the_diagonal(orthogonal):
    state, injected = states_and_inputs()
    result = orthogonal(state, torch.zeros_like(injected))
    torch.testing.assert_close(result, torch.sigmoid(orthogonal.diagonal_logit) * state)


@pytest.mark.parametrize("start", [0.1, 0.5, 0.9])
def test_the_diagonal_starts_at_injection_init(start):
    config = LoopLMConfig(vocab_size=5, hidden_size=D, intermediate_size=8, num_attention_heads=2, injection_init=start)
    logit = LoopLMForCausalLM(config).model.core.injection.diagonal_logit
    torch.testing.assert_close(torch.sigmoid(logit), torch.full((D,), start))


def test_the_linear_injection_is_one_matrix_on_state_and_input():
    torch.manual_seed(0)
    injection = LinearInjection(D).double()
    state, injected = states_and_inputs()
    weight = injection.adapter.weight
    assert weight.shape == (D, 2 * D)
    torch.testing.assert_close(injection(state, injected), torch.cat([state, injected], -1) @ weight.T)
    on_state, on_input = weight.split(D, dim=1)
    torch.testing.assert_close(injection(state, injected), state @ on_state.T + injected @ on_input.T)


def test_the_injection_is_the_one_named():
    assert isinstance(make_injection("linear", D, 0.5), LinearInjection)
    assert isinstance(make_injection("orthogonal", D, 0.5), OrthogonalInjection)


def test_decay_is_the_diagonal_plus_the_input():
    state, injected = states_and_inputs()
    decay = make_injection("decay", D, 0.5).double()
    torch.nn.init.normal_(decay.diagonal_logit)
    expected = torch.diag(torch.sigmoid(decay.diagonal_logit)) @ state.unsqueeze(-1)
    torch.testing.assert_close(decay(state, injected), expected.squeeze(-1) + injected)


def test_add_is_the_sum_and_has_no_parameters():
    state, injected = states_and_inputs()
    add = make_injection("add", D, 0.5)
    assert torch.equal(add(state, injected), state + injected)
    assert not list(add.parameters())
