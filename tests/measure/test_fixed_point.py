"""Fixed-point health against closed forms of a linear loop, dense Jacobians, and the plain forward pass."""

import math

import pytest
import torch
import torch.nn.functional as F

from looprl.measure.fixed_point import (
    angles,
    convergence_loops,
    next_token_nll,
    residuals,
    spectral_radii,
    state_variances,
    unroll,
)

EXACT = dict(rtol=1e-9, atol=1e-11)


def turn(degrees: float, scale: float, size: int = 8) -> torch.Tensor:
    """Every pair of coordinates turned by an angle and scaled: eigenvalues scale x e^(+-i angle)."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return scale * torch.block_diag(*[torch.tensor([[c, -s], [s, c]], dtype=torch.float64)] * (size // 2))


def test_residuals_of_a_scaling_loop_are_its_geometric_series(tiny_model, token_batch):
    unrolled = unroll(tiny_model(matrix=0.5 * torch.eye(8)), token_batch, 5)
    # z_r = (2 - 2^(1-r)) e and F(z_r) - z_r = 2^-r e
    expected = torch.tensor([0.5**r / (2 - 2 * 0.5**r) for r in range(1, 5)], dtype=torch.float64)
    torch.testing.assert_close(residuals(unrolled), expected[:, None].expand(4, 16), **EXACT)


def test_angles_of_a_turning_loop_are_those_of_its_states(tiny_model, token_batch):
    unrolled = unroll(tiny_model(matrix=turn(90, 1.0)), token_batch, 4)
    # z = e, e + Qe, Qe, 0 for a quarter turn Q: each state is 45 degrees ahead of the one before
    torch.testing.assert_close(angles(unrolled)[:2], torch.full((2, 16), 45.0, dtype=torch.float64), **EXACT)


def test_small_angles_keep_their_digits_in_single_precision(tiny_model, token_batch):
    unrolled = unroll(tiny_model(matrix=turn(90, 1e-5)).float(), token_batch, 2)
    expected = math.degrees(math.atan(1e-5))  # an arc cosine gives 0 here
    torch.testing.assert_close(angles(unrolled), torch.full((1, 16), expected), rtol=1e-2, atol=0)


def test_variance_is_that_of_the_real_tokens_of_all_batches(tiny_model, token_batch):
    model = tiny_model()
    many = [unroll(model, token_batch, 3), unroll(model, token_batch, 3)]
    states = torch.cat([unrolled.states[2][token_batch.attention_mask.bool()] for unrolled in many])
    expected = states.var(dim=0, correction=0).mean()
    variances = state_variances(many)
    assert variances.shape == (3,)
    torch.testing.assert_close(variances[1], expected, **EXACT)
    assert not torch.isclose(variances[0], expected, rtol=1e-3)


def test_a_token_converges_where_its_residual_stays_below():
    rows = torch.tensor(
        [[0.5, 0.5, 0.001, 0.001, 0.5], [0.1, 0.001, 0.5, 0.001, 0.5], [0.001, 0.001, 0.001, 0.001, 0.5]]
    )
    assert convergence_loops(rows, 0.01).tolist() == [3, 2, 3, 1, 0]
    assert convergence_loops(torch.tensor([[math.nan], [0.1]]), 0.01).tolist() == [0]


@pytest.mark.parametrize("num_loops", [1, 2, 4])
def test_likelihood_at_each_depth_is_the_cross_entropy_of_the_plain_model(
    tiny_model, token_batch, token_rows, num_loops
):
    model = tiny_model()
    expected = []
    for ids, _, prompt in token_rows:
        with torch.no_grad():
            logits = model(ids, num_loops=num_loops).logits[0]
        expected.append(F.cross_entropy(logits[prompt - 1 : -1], ids[0, prompt:], reduction="none"))
    found = next_token_nll(model, unroll(model, token_batch, 5), num_loops)
    torch.testing.assert_close(found, torch.cat(expected), **EXACT)


@pytest.mark.parametrize(("degrees", "scale"), [(0, 0.6), (90, 0.8), (40, 1.3)])
def test_spectral_radius_of_a_linear_loop_is_that_of_its_matrix(tiny_model, token_batch, degrees, scale):
    torch.manual_seed(1)
    # a basis that is not orthogonal, so that single growth factors oscillate
    basis = torch.eye(8, dtype=torch.float64) + 0.5 * torch.rand(8, 8, dtype=torch.float64)
    model = tiny_model(matrix=basis @ turn(degrees, scale) @ basis.inverse())
    radii = spectral_radii(model, unroll(model, token_batch, 3), 2, 200, torch.Generator().manual_seed(0))
    torch.testing.assert_close(radii, torch.full((3,), scale, dtype=torch.float64), rtol=1e-2, atol=0)


def test_spectral_radius_of_each_sequence_is_that_of_its_dense_jacobian_at_the_endpoint(
    tiny_model, token_batch, token_rows
):
    model = tiny_model(initializer_scale=1.5)
    unrolled = unroll(model, token_batch, 3)
    radii = spectral_radii(model, unrolled, 2, 600, torch.Generator().manual_seed(0))
    for row, (ids, columns, _) in enumerate(token_rows):
        context = model.model.context(ids, None)
        with torch.no_grad():
            injected = model.model.prelude(ids)

        def loop(state, injected=injected, context=context):
            return model.model.core(state, injected, *context)

        at = {r: unrolled.states[r][row : row + 1, columns] for r in (1, 2)}
        jacobians = {
            r: torch.autograd.functional.jacobian(loop, state).reshape(at[r].numel(), -1) for r, state in at.items()
        }
        exact = {r: torch.linalg.eigvals(jacobian).abs().max() for r, jacobian in jacobians.items()}
        torch.testing.assert_close(radii[row], exact[2], rtol=2e-2, atol=0)
        assert abs(exact[1] / exact[2] - 1) > 0.03
