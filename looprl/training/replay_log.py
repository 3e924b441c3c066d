"""What a replay shows of itself, into the step's metrics."""

import torch
from torch import Tensor

from looprl.measure.meter import StepMeter


@torch.no_grad()
def log_logprob_gaps(meter: StepMeter, replayed: Tensor, sampled: Tensor, kept: Tensor) -> None:
    """`replay/logprob_gap_mean`, `_max`: of the replay's to the sampler's log-probs [B, C], where `kept` is True."""
    if kept.any():
        gaps = (replayed - sampled)[kept].abs()
        meter.mean("replay/logprob_gap_mean", float(gaps.sum()), gaps.numel())
        meter.maximum("replay/logprob_gap_max", float(gaps.max()))


@torch.no_grad()
def log_residual(meter: StepMeter, before: Tensor, after: Tensor, fed: Tensor) -> None:
    """`replay/residual`: how far the loop moves the states [B, T, d] of the tokens that were fed, relatively."""
    moved = (after - before).norm(dim=-1)[fed] / after.norm(dim=-1)[fed]
    meter.mean("replay/residual", float(moved.sum()), moved.numel())


@torch.no_grad()
def log_truncated_ratios(meter: StepMeter, ratios: Tensor, limit: float, kept: Tensor) -> None:
    """`replay/truncated_share`: how many of the importance ratios [B, C] are at their bound."""
    meter.mean("replay/truncated_share", float((ratios[kept] >= limit).sum()), float(kept.sum()))
