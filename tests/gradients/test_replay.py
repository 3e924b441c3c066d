"""Where `replay` sends the adjoint, and where nothing arrives."""

import pytest
import torch

from tests.gradients.conftest import partial_sum

CLOSE = dict(rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("steps", [0, 1, 3, 200])
def test_replay_hands_exactly_the_adjoint_to_the_weights_and_the_input(loop, steps):
    adjoint = partial_sum(loop.dense_jacobian().T, loop.cotangent, steps)
    injected = loop.injected.clone().requires_grad_()
    expected = torch.autograd.grad(loop.apply(loop.state, injected), [injected, *loop.parameters], adjoint)

    loop.core.zero_grad(set_to_none=True)
    leaf = loop.injected.clone().requires_grad_()
    output = loop.replay(steps, injected=leaf)
    torch.testing.assert_close(output, loop.apply(loop.state), rtol=0, atol=0)
    output.backward(loop.cotangent)
    torch.testing.assert_close([leaf.grad, *(p.grad for p in loop.parameters)], list(expected), **CLOSE)


@pytest.mark.parametrize("steps", [0, 3])
def test_no_gradient_reaches_the_state_or_what_made_it(loop, steps):
    source = loop.state.clone().requires_grad_()
    state = 2 * source - loop.state
    state.retain_grad()
    loop.replay(steps, state=state).backward(loop.cotangent)
    assert source.grad is None and state.grad is None


@pytest.mark.parametrize("without_autograd", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("steps", [0, 3])
def test_without_autograd_replay_is_one_plain_loop(loop, steps, without_autograd):
    with without_autograd():
        output = loop.replay(steps)
    assert torch.equal(output, loop.apply(loop.state)) and not output.requires_grad


def test_two_replays_in_one_graph_do_not_interfere(loop):
    first, second = dict(steps=4), dict(steps=1, state=0.5 * loop.state, injected=1.1 * loop.injected)

    def gradients(*replays):
        loop.core.zero_grad(set_to_none=True)
        sum((loop.replay(**each) * loop.cotangent).sum() for each in replays).backward()
        return [parameter.grad.clone() for parameter in loop.parameters]

    apart = [a + b for a, b in zip(gradients(first), gradients(second), strict=True)]
    torch.testing.assert_close(gradients(first, second), apart, **CLOSE)
    torch.testing.assert_close(gradients(second, first), apart, **CLOSE)

    # recorded together, backpropagated one after the other
    loop.core.zero_grad(set_to_none=True)
    outputs = [loop.replay(**first), loop.replay(**second)]
    for output in outputs:
        output.backward(loop.cotangent)
    torch.testing.assert_close([parameter.grad for parameter in loop.parameters], apart, **CLOSE)


def test_backpropagating_twice_gives_twice_the_gradient(loop):
    output = loop.replay(3)
    output.backward(loop.cotangent, retain_graph=True)
    once = [parameter.grad.clone() for parameter in loop.parameters]
    output.backward(loop.cotangent)
    torch.testing.assert_close([p.grad for p in loop.parameters], [2 * gradient for gradient in once], **CLOSE)
