"""Everything that `looprl inspect` measures on a model, in plain numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from looprl.data.documents import TokenBatch
from looprl.measure.decoding import Decoded, decode
from looprl.measure.fixed_point import (
    angles,
    convergence_loops,
    next_token_nll,
    residuals,
    spectral_radii,
    state_variances,
    unroll,
)
from looprl.measure.initial_states import StartGap, start_gaps
from looprl.measure.reuse import ReuseRow, compare_with_full, policy_batches
from looprl.models.contract import LoopedForCausalLM
from looprl.rollout.record import KVPolicy

TOKEN_TOLERANCE = 1e-2  # a token has converged when no later loop moves its state by more than 1 %
POWER_ITERATIONS = 32  # 16, 32 and 400 agree to .002 on the shipped model


@dataclass(frozen=True)
class LoopRow:
    """After loop r, over the tokens: the residual |F(z_r) - z_r| / |z_r|, the angle between z_r and z_{r+1} in degrees
    (mean), the variance of z_r over tokens, and how many tokens converge at just this loop. nll: the negative
    log-likelihood of the tokens after the prompts in nats per token, when z_r is read out.
    """

    loop: int
    residual_mean: float
    residual_median: float
    residual_p90: float
    angle: float
    state_variance: float
    tokens_converging: int
    nll: float


@dataclass(frozen=True)
class SpectralRadius:
    """Of J at the endpoint, over sequences; `expanding` of them have 1 or more."""

    median: float
    max: float
    sequences: int
    expanding: int


@dataclass(frozen=True)
class KVLikelihood:
    """Mean negative log-likelihood in nats per token after the prompt, under cached decoding with either K/V policy.

    difference: terminal - per_loop, paired by token, with the standard error of its mean.
    """

    terminal: float
    per_loop: float
    difference: float
    standard_error: float
    tokens: int


@dataclass(frozen=True)
class Inspection:
    """The health of a model with R = `num_loops`; `kv_policy` is that of the decoding whose states are reused.

    loops: rows for r = 1, 2, ... beyond R. tokens_not_converging: those whose residual is still above TOKEN_TOLERANCE
    after the last of them. tokens: real tokens in all. initial_states: none where the family has but one.
    """

    num_loops: int
    kv_policy: KVPolicy
    tokens: int
    loops: tuple[LoopRow, ...]
    tokens_not_converging: int
    spectral_radius: SpectralRadius
    kv: KVLikelihood
    reuse: tuple[ReuseRow, ...]
    initial_states: tuple[StartGap, ...] = ()

    def after(self, loop: int) -> LoopRow:
        """The row of a loop."""
        return self.loops[loop - 1]


def inspect_model(
    model: LoopedForCausalLM,
    batches: Sequence[TokenBatch],
    num_loops: int,
    most_loops: int,
    most_neumann_steps: int,
    kv_policy: KVPolicy,
    seed: int,
    on_progress: Callable[[str], object] = lambda _: None,
) -> Inspection:
    """Measure a model on token batches, for r = 1..`most_loops` (at least R = `num_loops`).

    on_progress: told what is measured next.
    """
    generator = torch.Generator().manual_seed(seed)
    on_progress("loops")
    many = [unroll(model, batch, most_loops + 1) for batch in batches]
    residual = torch.cat([residuals(unrolled) for unrolled in many], dim=1)
    angle = torch.cat([angles(unrolled) for unrolled in many], dim=1)
    variance = state_variances(many)
    converged = convergence_loops(residual, TOKEN_TOLERANCE)
    rows = []
    for r in range(1, most_loops + 1):
        nll = torch.cat([next_token_nll(model, unrolled, r) for unrolled in many])
        rows.append(_loop_row(r, residual[r - 1], angle[r - 1], float(variance[r - 1]), converged, float(nll.mean())))
    on_progress("spectral radius")
    radii = torch.cat([spectral_radii(model, unrolled, num_loops, POWER_ITERATIONS, generator) for unrolled in many])
    del many
    on_progress("initial states")
    starts = start_gaps(model, batches, num_loops, seed)
    on_progress("likelihood under both K/V policies")
    decoded = {
        policy: [decode(model, batch, num_loops, policy) for batch in batches] for policy in ("terminal", "per_loop")
    }
    comparison = compare_with_full(
        model, policy_batches(batches, decoded[kv_policy], generator), num_loops, most_neumann_steps
    )
    reuse = []
    on_progress("gradients: full")
    for row in comparison:
        reuse.append(row)
        on_progress(f"gradients: {row.estimator} from {row.replay_from}, K = {row.neumann_steps}")
    return Inspection(
        num_loops=num_loops,
        kv_policy=kv_policy,
        tokens=residual.shape[1],
        loops=tuple(rows),
        tokens_not_converging=int((converged == 0).sum()),
        spectral_radius=SpectralRadius(
            float(radii.median()), float(radii.max()), len(radii), int((~(radii < 1)).sum())
        ),
        kv=_kv_likelihood(batches, decoded["terminal"], decoded["per_loop"]),
        reuse=tuple(reuse),
        initial_states=starts,
    )


def _loop_row(r: int, residual: Tensor, angle: Tensor, variance: float, converged: Tensor, nll: float) -> LoopRow:
    return LoopRow(
        loop=r,
        residual_mean=float(residual.mean()),
        residual_median=float(residual.quantile(0.5)),
        residual_p90=float(residual.quantile(0.9)),
        angle=float(angle.mean()),
        state_variance=variance,
        tokens_converging=int((converged == r).sum()),
        nll=nll,
    )


def _kv_likelihood(
    batches: Sequence[TokenBatch], terminal: Sequence[Decoded], per_loop: Sequence[Decoded]
) -> KVLikelihood:
    def nll(decoded: Sequence[Decoded]) -> Tensor:
        return torch.cat([-found.logps[batch.follows] for batch, found in zip(batches, decoded, strict=True)])

    ours, theirs = nll(terminal), nll(per_loop)
    return KVLikelihood(
        terminal=float(ours.mean()),
        per_loop=float(theirs.mean()),
        difference=float((ours - theirs).mean()),
        standard_error=float((ours - theirs).std(correction=0)) / len(ours) ** 0.5,
        tokens=len(ours),
    )
