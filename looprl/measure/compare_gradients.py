"""Every estimator's policy gradient on the same rollouts: fidelity and cost, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

import torch

from looprl.gradients import AdjointSolver, NeumannSteps
from looprl.gradients.estimator import ReplayFrom
from looprl.gradients.log_probs import LOOP_WEIGHTS
from looprl.measure.estimator_rows import Case, Row
from looprl.measure.policy_gradient import Gradients, PolicyBatch, by_part, cosines, norm, policy_gradient
from looprl.measure.timing import interleaved_seconds, peak_bytes
from looprl.models.contract import LoopedForCausalLM


def cases(
    neumann_steps: Sequence[NeumannSteps],
    num_loops: int,
    tolerance: float = AdjointSolver.tolerance,
    exit_gate: bool = False,
) -> list[Case]:
    """Full BPTT first, then RLTT with all its weights (`exit` where the model has a gate), then truncated BPTT at
    b = K + 1 < R, then each `recompute` with its `reuse` after it.

    The solver of least residual stands beside the plain series for penultimate `reuse`, where K is not 0. tolerance: of
    `auto`. ValueError on steps that mean nothing.
    """
    listed = [Case.preset("full"), Case.preset("full_checkpointed")]
    listed += [Case.preset("rltt", loop_weights=each) for each in LOOP_WEIGHTS if each != "exit" or exit_gate]
    recorded = sorted({steps + 1 for steps in neumann_steps if not isinstance(steps, str)})
    listed += [Case.preset("truncated", loops_recorded=b) for b in recorded if 1 <= b < num_loops]
    for replay_from in get_args(ReplayFrom):
        for steps in neumann_steps:
            for method in ("neumann", "least_squares"):
                if method == "least_squares" and (replay_from == "endpoint" or steps == 0):
                    continue
                settings = dict(adjoint_solver=method, neumann_tolerance=tolerance)
                listed += [Case.preset(name, steps, replay_from, **settings) for name in ("recompute", "reuse")]
    return listed


def with_endpoint_states(model: LoopedForCausalLM, batch: PolicyBatch) -> PolicyBatch:
    """Add the endpoint states to rollouts that hold penultimate ones: what the sampler's last loop made of them.

    Replaying that loop repeats the sampler's computation (in fp32 within 1e-5), so these are its endpoints.
    """
    penultimate = batch.states["penultimate"]
    with torch.no_grad():
        output = model.model(batch.input_ids[:, :-1], batch.attention_mask[:, :-1], 1, penultimate)
    return replace(batch, states={"penultimate": penultimate, "endpoint": output.state})


def compare_gradients(
    model: LoopedForCausalLM,
    batch: PolicyBatch,
    num_loops: int,
    neumann_steps: Sequence[NeumannSteps],
    repeats: int,
    device: str,
    tolerance: float = AdjointSolver.tolerance,
) -> Iterator[Row]:
    """Rows of `Case.row`, and `products` (mean over the sequences), `cosine_to_full`, `cosine_to_recompute` (each by
    part, and `all`), `norm_ratio`, `logprob_gap_mean` and `logprob_gap_max` against the sampler.

    `cosine_to_recompute` compares `reuse` with the `recompute` of the same start, K and solver; it is None elsewhere.
    ValueError when the batch's states do not belong to it.
    """
    listed = cases(list(dict.fromkeys(neumann_steps)), num_loops, tolerance, not model.FAMILY.no_exit_gate)
    calls = {
        str(index): partial(policy_gradient, model, batch, case.estimator, num_loops)
        for index, case in enumerate(listed)
    }
    seconds = interleaved_seconds(calls, repeats, device)
    parts = by_part(model)
    real = batch.attention_mask[:, -batch.weights.shape[1] :].bool()
    shape = f"{len(batch.input_ids)}x{batch.input_ids.shape[1]}xd{model.config.hidden_size}"
    full: Gradients = {}
    recomputed: Gradients = {}
    for index, case in enumerate(listed):
        computed = calls[str(index)]()
        gradients = computed.gradients
        full = gradients if case.name == "full" else full
        recomputed = gradients if case.name == "recompute" else recomputed
        gaps = (computed.logps - batch.sampler_logps)[real].abs()
        solved = computed.solution
        yield {
            **case.row(shape, num_loops, seconds[str(index)], seconds["0"], peak_bytes(calls[str(index)], device)),
            "products": 0.0 if solved is None else float(solved.steps[solved.solved].mean()),
            "cosine_to_full": cosines(gradients, full, parts),
            "cosine_to_recompute": cosines(gradients, recomputed, parts) if case.name == "reuse" else None,
            "norm_ratio": norm(gradients) / full_norm if (full_norm := norm(full)) else None,
            "logprob_gap_mean": float(gaps.mean()),
            "logprob_gap_max": float(gaps.max()),
        }
