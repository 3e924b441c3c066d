"""How well a replayed loop stands in for full BPTT on given text: the evidence behind the verdict on reuse.

The text is treated as if it had been sampled: its states come from cached decoding under the rollout's K/V policy, and
each document has an advantage of +1 or -1, drawn at random.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from looprl.data.documents import TokenBatch
from looprl.gradients import Estimator
from looprl.gradients.estimator import Preset, ReplayFrom
from looprl.measure.decoding import Decoded
from looprl.measure.policy_gradient import (
    Gradients,
    PolicyBatch,
    by_part,
    cosines,
    norm,
    policy_gradient,
)
from looprl.models.contract import LoopedForCausalLM

STARTS: tuple[ReplayFrom, ...] = ("penultimate", "endpoint")
ONE_LOOP: tuple[Preset, ...] = ("reuse", "recompute")


@dataclass(frozen=True)
class ReuseRow:
    """One estimator against full BPTT.

    cosine_to_full: by part of the model and for `all`, None where a gradient is zero. norm_ratio: |ours| / |full|.
    logprob_gap_mean, logprob_gap_max: |replay - decoding| of the log-probs in nats, over the tokens after the prompts.
    """

    estimator: Preset
    replay_from: ReplayFrom
    num_loops: int
    neumann_steps: int
    cosine_to_full: dict[str, float | None]
    norm_ratio: float
    logprob_gap_mean: float
    logprob_gap_max: float


def policy_batches(
    batches: Sequence[TokenBatch], decoded: Sequence[Decoded], generator: torch.Generator
) -> list[PolicyBatch]:
    """Decoded text as rollouts, weighted by a random sign per document over the number of all tokens after prompts."""
    count = sum(int(batch.follows.sum()) for batch in batches)
    return [
        PolicyBatch(
            batch.input_ids,
            batch.attention_mask,
            _signs(len(batch.input_ids), generator).to(found.logps) * batch.follows / count,
            found.states,
            found.logps,
        )
        for batch, found in zip(batches, decoded, strict=True)
    ]


def compare_with_full(
    model: LoopedForCausalLM, batches: Sequence[PolicyBatch], num_loops: int, most_steps: int
) -> Iterable[ReuseRow]:
    """Reuse and recompute from both states with K = 0..`most_steps`, each against full BPTT; a row at a time."""
    full, _ = _gradient(model, batches, Estimator.preset("full"), num_loops)
    full_norm, parts = norm(full), by_part(model)
    for name in ONE_LOOP:
        for start in STARTS:
            for steps in range(most_steps + 1):
                estimator = Estimator.preset(name, neumann_steps=steps, replay_from=start)
                ours, gaps = _gradient(model, batches, estimator, num_loops)
                yield ReuseRow(
                    name,
                    start,
                    num_loops,
                    steps,
                    cosines(ours, full, parts),
                    norm(ours) / full_norm if full_norm > 0 else float("nan"),
                    float(gaps.mean()),
                    float(gaps.max()),
                )


def _gradient(
    model: LoopedForCausalLM, batches: Sequence[PolicyBatch], estimator: Estimator, num_loops: int
) -> tuple[Gradients, torch.Tensor]:
    """The gradient over all batches, and |replay - decoding| of each token's log-prob."""
    total: Gradients = {}
    gaps = []
    for batch in batches:
        found = policy_gradient(model, batch, estimator, num_loops)
        for name, gradient in found.gradients.items():
            total[name] = total[name] + gradient if name in total else gradient
        gaps.append((found.logps - batch.sampler_logps).abs()[batch.weights != 0])
    return total, torch.cat(gaps)


def _signs(count: int, generator: torch.Generator) -> torch.Tensor:
    """[B, 1] of +1 and -1."""
    return 2.0 * torch.randint(2, (count, 1), generator=generator) - 1
