"""An inspection puts every measurement where it belongs: over all batches, at the right loop, with the right sign."""

import pytest
import torch

from looprl.measure.decoding import decode
from looprl.measure.fixed_point import angles, next_token_nll, residuals, spectral_radii, unroll
from looprl.measure.inspection import POWER_ITERATIONS, TOKEN_TOLERANCE, inspect_model

R, MOST = 3, 5


@pytest.fixture
def model(tiny_model):
    return tiny_model(initializer_scale=1.5)


@pytest.fixture
def batches(token_batch, other_batch):
    return [token_batch, other_batch]


@pytest.fixture
def inspection(model, batches):
    return inspect_model(model, batches, R, MOST, 1, "terminal", seed=7)


def test_rows_are_those_of_their_loop_over_all_batches(model, batches, inspection):
    many = [unroll(model, batch, 9) for batch in batches]
    residual, angle = (torch.cat([of(unrolled) for unrolled in many], dim=1) for of in (residuals, angles))
    assert [row.loop for row in inspection.loops] == [1, 2, 3, 4, 5]
    for row in inspection.loops:
        at = residual[row.loop - 1]
        assert row.residual_mean == pytest.approx(float(at.mean()))
        assert (
            row.residual_median == pytest.approx(float(at.median()), rel=0.2) and row.residual_p90 > row.residual_median
        )
        assert float((at <= row.residual_p90).double().mean()) == pytest.approx(0.9, abs=0.05)
        assert row.angle == pytest.approx(float(angle[row.loop - 1].mean()))
        nll = torch.cat([next_token_nll(model, unrolled, row.loop) for unrolled in many])
        assert row.nll == pytest.approx(float(nll.mean()))
    assert inspection.tokens == residual.shape[1] == 32
    assert inspection.after(R) is inspection.loops[R - 1]


def test_every_token_converges_once_or_never(tiny_model, batches):
    found = inspect_model(tiny_model(matrix=0.3 * torch.eye(8)), batches, R, MOST, 0, "terminal", seed=0)
    # 0.3^r / (1 + ... + 0.3^(r-1)) is below 0.01 from r = 4 on
    assert TOKEN_TOLERANCE == 0.01
    assert [row.tokens_converging for row in found.loops] == [0, 0, 0, 32, 0] and found.tokens_not_converging == 0
    found = inspect_model(tiny_model(matrix=0.9 * torch.eye(8)), batches, R, MOST, 0, "terminal", seed=0)
    assert found.tokens_not_converging == 32 and sum(row.tokens_converging for row in found.loops) == 0


def test_spectral_radii_are_those_at_the_endpoint(model, batches, inspection):
    generator = torch.Generator().manual_seed(7)
    many = [unroll(model, batch, R) for batch in batches]
    radii = torch.cat([spectral_radii(model, unrolled, R, POWER_ITERATIONS, generator) for unrolled in many])
    found = inspection.spectral_radius
    assert (found.max, found.median) == pytest.approx((float(radii.max()), float(radii.median())))
    assert (found.sequences, found.expanding) == (6, int((radii >= 1).sum()))


def test_the_difference_of_the_likelihoods_is_terminal_less_per_loop_with_its_error(model, batches, inspection):
    nll = {
        policy: torch.cat([-decode(model, batch, R, policy).logps[batch.follows] for batch in batches])
        for policy in ("terminal", "per_loop")
    }
    kv, difference = inspection.kv, nll["terminal"] - nll["per_loop"]
    assert (kv.terminal, kv.per_loop) == pytest.approx((float(nll["terminal"].mean()), float(nll["per_loop"].mean())))
    assert kv.difference == pytest.approx(float(difference.mean())) and abs(kv.difference) > 1e-4
    assert kv.standard_error == pytest.approx(float(difference.std()) / len(difference) ** 0.5, rel=0.1)
    assert kv.tokens == len(difference) == 20
    assert kv.per_loop == pytest.approx(inspection.after(R).nll)


def test_reused_states_are_those_of_the_asked_policy(model, batches, inspection):
    per_loop = inspect_model(model, batches, R, MOST, 1, "per_loop", seed=7)
    gap = {found.kv_policy: found.reuse[4].logprob_gap_max for found in (inspection, per_loop)}
    row = inspection.reuse[4]
    assert (row.estimator, row.replay_from, row.neumann_steps) == ("recompute", "penultimate", 0)
    assert gap["per_loop"] < 1e-9 < 1e-4 < gap["terminal"]
