"""Whether the endpoint depends on the initial state: the loop from zero and from two drawn states, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from looprl.data.documents import TokenBatch
from looprl.measure.fixed_point import next_token_nll, unroll
from looprl.models.contract import LoopedForCausalLM
from looprl.models.initial_state import drawn_initial_state, is_drawable


@dataclass(frozen=True)
class StartGap:
    """How far apart two initial states end, `first` and `second` being `zero` or `drawn N`.

    distance: 2 |a - b| / (|a| + |b|) of the endpoints a and b of each token, mean over tokens. logprob_gap_mean,
    logprob_gap_max: of the log-probs of the tokens after the prompts, in nats.
    """

    first: str
    second: str
    distance: float
    logprob_gap_mean: float
    logprob_gap_max: float


def start_gaps(
    model: LoopedForCausalLM, batches: Sequence[TokenBatch], num_loops: int, seed: int
) -> tuple[StartGap, ...]:
    """Zero and the drawn states of `seed` and `seed` + 1, in pairs; none where the family has no distribution."""
    if not is_drawable(model.config):
        return ()
    seeds = {"zero": None, "drawn 1": seed, "drawn 2": seed + 1}
    ends = {name: _ends(model, batches, num_loops, drawn) for name, drawn in seeds.items()}
    return tuple(_gap(first, second, *ends[first], *ends[second]) for first, second in combinations(seeds, 2))


def _ends(
    model: LoopedForCausalLM, batches: Sequence[TokenBatch], num_loops: int, seed: int | None
) -> tuple[Tensor, Tensor]:
    """The endpoints [N, d] of all tokens, and the log-probs of those after the prompts [M]."""
    states, logprobs = [], []
    for batch in batches:
        start = drawn_initial_state(model.config, seed, batch.input_ids, batch.attention_mask)
        unrolled = unroll(model, batch, num_loops, start)
        states.append(unrolled.states[-1][unrolled.real])
        logprobs.append(-next_token_nll(model, unrolled, num_loops))
    return torch.cat(states), torch.cat(logprobs)


def _gap(first: str, second: str, a: Tensor, a_logprobs: Tensor, b: Tensor, b_logprobs: Tensor) -> StartGap:
    distance = 2 * (a - b).norm(dim=-1) / (a.norm(dim=-1) + b.norm(dim=-1))
    gaps = (a_logprobs - b_logprobs).abs()
    return StartGap(first, second, float(distance.mean()), float(gaps.mean()), float(gaps.max()))
