"""The adjoint solvers against dense Jacobians, dense solves and independent least squares."""

import pytest
import torch

from looprl.gradients import AdjointSolver
from tests.gradients.conftest import partial_sum

CLOSE = dict(rtol=1e-10, atol=1e-12)


def test_the_tiny_core_contracts_and_is_not_symmetric(loop):
    jacobian = loop.dense_jacobian()
    assert 0.3 < torch.linalg.eigvals(jacobian).abs().max() < 0.8
    assert (jacobian - jacobian.T).abs().max() > 0.1


def test_many_steps_equal_a_dense_solve(loop):
    jacobian = loop.dense_jacobian()
    identity = torch.eye(len(jacobian), dtype=torch.float64)
    expected = torch.linalg.solve(identity - jacobian.T, loop.cotangent.flatten()).view_as(loop.cotangent)
    torch.testing.assert_close(AdjointSolver(200)(loop.cotangent, loop.product()).adjoint, expected, **CLOSE)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_few_steps_equal_the_partial_sum_of_dense_powers(loop, steps):
    jacobian = loop.dense_jacobian()
    adjoint = AdjointSolver(steps)(loop.cotangent, loop.product()).adjoint
    torch.testing.assert_close(adjoint, partial_sum(jacobian.T, loop.cotangent, steps), **CLOSE)
    others = [partial_sum(jacobian.T, loop.cotangent, steps + 1)]
    if steps:
        others += [partial_sum(jacobian.T, loop.cotangent, steps - 1), partial_sum(jacobian, loop.cotangent, steps)]
    assert all((adjoint - other).abs().max() > 1e-3 for other in others)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_the_solver_makes_exactly_k_products(loop, steps):
    product, calls = loop.product(), []
    AdjointSolver(steps)(loop.cotangent, lambda vector: calls.append(0) or product(vector))
    assert len(calls) == steps


@pytest.mark.parametrize("method", ["neumann", "least_squares"])
@pytest.mark.parametrize("steps", [3, "auto"])
def test_what_is_not_finite_stays_within_its_sequence(loop, steps, method):
    cotangent, size = loop.cotangent.clone(), loop.cotangent[0].numel()
    cotangent[0, 0, 0] = torch.nan
    jacobian = loop.dense_jacobian()
    blocks = [jacobian[start : start + size, start : start + size] for start in range(0, len(jacobian), size)]

    def product(vector):
        return torch.stack([(block.T @ row.flatten()).view_as(row) for block, row in zip(blocks, vector, strict=True)])

    adjoint = AdjointSolver(steps, method)(cotangent, product).adjoint
    assert adjoint[0].isnan().any()
    torch.testing.assert_close(
        adjoint[1:], AdjointSolver(steps, method)(loop.cotangent, loop.product()).adjoint[1:], **CLOSE
    )


# Least squares


def krylov_solution(jacobian, cotangent, steps):
    """The g + J^T u of least |(I - J^T) u - g|, for u in the span of the first powers, by an orthogonal basis."""
    size, matrix = cotangent.numel(), jacobian.T
    powers = torch.stack([torch.linalg.matrix_power(matrix, k) @ cotangent.flatten() for k in range(steps)], dim=1)
    basis, _ = torch.linalg.qr(powers)
    system = (torch.eye(size, dtype=matrix.dtype) - matrix) @ basis
    best = basis @ torch.linalg.lstsq(system, cotangent.flatten().unsqueeze(1)).solution.squeeze(1)
    return (cotangent.flatten() + matrix @ best).view_as(cotangent)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_least_squares_is_the_smoothed_krylov_solution_of_each_sequence(loop, steps):
    jacobian, size = loop.dense_jacobian(), loop.cotangent[0].numel()
    adjoint = AdjointSolver(steps, "least_squares")(loop.cotangent, loop.product()).adjoint
    for row in range(3):
        block = slice(row * size, (row + 1) * size)
        expected = krylov_solution(jacobian[block, block], loop.cotangent[row], steps)
        torch.testing.assert_close(adjoint[row], expected, rtol=1e-6, atol=1e-8)
        assert (
            adjoint[row] - krylov_solution(jacobian[block, block], loop.cotangent[row], steps + 1)
        ).abs().max() > 1e-3


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_on_a_slow_core_least_squares_gains_a_product_on_the_plain_sum(steps):
    basis = rotation(size=12)
    slow = basis @ torch.diag(torch.linspace(0, 0.9, 12, dtype=torch.float64)) @ basis.T
    cotangent, product = matrices(slow)
    solution = torch.linalg.solve(torch.eye(12, dtype=torch.float64) - slow.T, cotangent[0])

    def error(solver):
        return (solver(cotangent, product).adjoint[0] - solution).norm()

    assert error(AdjointSolver(steps, "least_squares")) < error(AdjointSolver(steps + 1))


def test_least_squares_takes_no_further_product_and_without_any_is_the_cotangent(loop):
    product, calls = loop.product(), []
    AdjointSolver(3, "least_squares")(loop.cotangent, lambda vector: calls.append(0) or product(vector))
    assert len(calls) == 3
    assert torch.equal(AdjointSolver(0, "least_squares")(loop.cotangent, product).adjoint, loop.cotangent)


def test_least_squares_does_not_take_an_overflow_for_no_products():
    cotangent = torch.ones(1, 2, dtype=torch.float64)
    assert not AdjointSolver(3, "least_squares")(cotangent, lambda vector: 1e100 * vector).adjoint.isfinite().any()


# auto


def matrices(*matrices):
    """A batch of linear cores, J = each matrix: u -> J^T u, and a cotangent for each."""
    stacked = torch.stack([matrix.double() for matrix in matrices])
    cotangent = torch.randn(
        len(matrices), stacked.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    return cotangent, lambda vector: torch.einsum("bij,bi->bj", stacked, vector)


def rotation(seed=0, size=6):
    return torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double())[0]


@pytest.mark.parametrize("tolerance", [0.2, 0.03, 1e-4])
def test_auto_stops_where_the_terms_to_come_are_below_the_tolerance(tolerance):
    """A rotation times 1/2 has terms 2^-k, so those to come sum to the last one."""
    cotangent, product = matrices(0.5 * rotation())
    found = AdjointSolver("auto", tolerance=tolerance, most_steps=50)(cotangent, product)
    sums = {k: AdjointSolver(k)(cotangent, product).adjoint for k in range(1, 50)}
    to_come = {k: 0.5**k * cotangent.norm() / sums[k].norm() for k in sums}
    expected = next(k for k in sums if to_come[k] <= tolerance)
    assert found.steps.item() == expected and torch.allclose(found.adjoint, sums[expected], rtol=1e-12)
    assert found.remainder.item() == pytest.approx(to_come[expected].item())
    assert found.growth.item() == pytest.approx(0.5) and not found.grew.item()


def test_each_sequence_stops_by_itself():
    parts = [0.05 * rotation(1), 0.5 * rotation(2), 0.8 * rotation(3), 1.3 * rotation(4), 2.5 * rotation(5)]
    solver = AdjointSolver("auto", tolerance=0.1, most_steps=30)
    cotangent, product = matrices(*parts)
    together = solver(cotangent, product)
    for row, part in enumerate(parts):
        _, alone = matrices(part)
        found = solver(cotangent[row : row + 1], alone)
        torch.testing.assert_close(found.adjoint[0], together.adjoint[row], **CLOSE)
        for name in ("steps", "remainder", "growth", "grew"):
            assert getattr(found, name).item() == pytest.approx(getattr(together, name)[row].item()), name
    assert together.steps[0] < together.steps[1] < together.steps[2]
    assert together.grew.tolist() == [False, False, False, True, True]


def test_a_growing_series_is_damped_to_shrink_as_fast_as_it_would_have_grown():
    growth = 1.25
    cotangent, product = matrices(growth * rotation())
    found = AdjointSolver("auto", tolerance=0.01, most_steps=60)(cotangent, product)
    steps = int(found.steps.item())
    assert 10 < steps < 60 and found.grew.item() and found.growth.item() == pytest.approx(growth)
    _, shrinking = matrices(rotation() / growth)
    torch.testing.assert_close(found.adjoint, AdjointSolver(steps)(cotangent, shrinking).adjoint, **CLOSE)


@pytest.mark.parametrize("method", ["neumann", "least_squares"])
def test_catastrophic_growth_ends_the_series_before_its_first_term(method):
    cotangent, product = matrices(2.1 * rotation())
    found = AdjointSolver("auto", method)(cotangent, product)
    assert torch.equal(found.adjoint, cotangent) and found.steps.item() == 0 and found.grew.item()


@pytest.mark.parametrize("method", ["neumann", "least_squares"])
@pytest.mark.parametrize("steps", ["auto", 3])
def test_a_sequence_without_cotangent_has_no_adjoint_and_does_not_count(steps, method):
    cotangent, product = matrices(0.5 * rotation(), 0.5 * rotation())
    cotangent[0] = 0
    found = AdjointSolver(steps, method)(cotangent, product)
    assert found.adjoint[0].eq(0).all() and found.adjoint.isfinite().all()
    assert found.steps[0] == 0 and found.remainder[0] == 0 and found.growth[0].isnan() and not found.grew[0]
    assert found.steps[1] > 0 and found.remainder[1] > 0


def test_an_infinite_term_is_left_out():
    cotangent = torch.ones(1, 4, dtype=torch.float64)
    found = AdjointSolver("auto", tolerance=0.01)(cotangent, lambda vector: vector * torch.inf)
    assert torch.equal(found.adjoint, cotangent) and found.grew.item()


def test_fixed_steps_tell_of_growth_and_change_nothing():
    cotangent, product = matrices(1.5 * rotation())
    found = AdjointSolver(3)(cotangent, product)
    expected = sum(torch.linalg.matrix_power(1.5 * rotation(), k).T @ cotangent[0] for k in range(4))
    torch.testing.assert_close(found.adjoint[0], expected, **CLOSE)
    assert found.grew.item() and found.steps.item() == 3 and found.growth.item() == pytest.approx(1.5)


@pytest.mark.parametrize("steps", ["auto", 4])
def test_a_series_that_ends_by_itself_does_not_grow(steps):
    """J^T g = 0 where J projects onto what g has no part in: every term after g is zero."""
    cotangent = torch.zeros(2, 4, dtype=torch.float64)
    cotangent[:, 0] = 1
    projection = torch.tensor([0.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    found = AdjointSolver(steps)(cotangent, lambda vector: vector * projection)
    assert torch.equal(found.adjoint, cotangent) and not found.grew.any()
    assert found.solved.all() and found.remainder.eq(0).all()
