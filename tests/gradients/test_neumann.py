"""The Neumann adjoint against dense Jacobians, and where `replay` sends it."""

from functools import partial

import pytest
import torch

from looprl.gradients import neumann_adjoint, replay

CLOSE = dict(rtol=1e-10, atol=1e-12)


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
        return self.apply(state, injected, record=partial(replay, neumann_steps=steps))

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


def test_the_tiny_core_contracts_and_is_not_symmetric(loop):
    jacobian = loop.dense_jacobian()
    assert 0.3 < torch.linalg.eigvals(jacobian).abs().max() < 0.8
    assert (jacobian - jacobian.T).abs().max() > 0.1


def test_many_steps_equal_a_dense_solve(loop):
    jacobian = loop.dense_jacobian()
    identity = torch.eye(len(jacobian), dtype=torch.float64)
    expected = torch.linalg.solve(identity - jacobian.T, loop.cotangent.flatten()).view_as(loop.cotangent)
    torch.testing.assert_close(neumann_adjoint(loop.cotangent, loop.product(), 200), expected, **CLOSE)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_few_steps_equal_the_partial_sum_of_dense_powers(loop, steps):
    jacobian = loop.dense_jacobian()
    adjoint = neumann_adjoint(loop.cotangent, loop.product(), steps)
    torch.testing.assert_close(adjoint, partial_sum(jacobian.T, loop.cotangent, steps), **CLOSE)
    others = [partial_sum(jacobian.T, loop.cotangent, steps + 1)]
    if steps:
        others += [partial_sum(jacobian.T, loop.cotangent, steps - 1), partial_sum(jacobian, loop.cotangent, steps)]
    assert all((adjoint - other).abs().max() > 1e-3 for other in others)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_the_solver_makes_exactly_k_products(loop, steps):
    product, calls = loop.product(), []
    neumann_adjoint(loop.cotangent, lambda vector: calls.append(0) or product(vector), steps)
    assert len(calls) == steps


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
