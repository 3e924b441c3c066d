"""An exit gate: after each loop it says how likely a token is to stop there, if it has not stopped before.

Published with Ouro (Zhu et al., 2025, arXiv:2510.25741).
"""

import torch
from torch import Tensor

from looprl.models.contract import at_least_fp32


def exit_distribution(gate_logits: Tensor) -> Tensor:
    """How likely each loop is the one that a token stops at, from gate logits [..., R]: [..., R], in fp32 at least.

    p_r = lambda_r (1 - lambda_1) ... (1 - lambda_{r-1}) with lambda = sigmoid(gate); the last takes all that is left.
    """
    stop = torch.sigmoid(at_least_fp32(gate_logits))
    left = torch.cat([torch.ones_like(stop[..., :1]), (1 - stop[..., :-1]).cumprod(-1)], dim=-1)
    return torch.cat([(stop * left)[..., :-1], left[..., -1:]], dim=-1)


def exit_places(probabilities: Tensor, threshold: float) -> Tensor:
    """Where a token stops early, from its exit distribution [..., R]: the index, from 0, of a loop [...].

    That is the first one by which the probabilities sum to `threshold`, and the last where none does.
    """
    reached = (probabilities.cumsum(-1) >= threshold).long()
    last = torch.full_like(reached[..., 0], reached.shape[-1] - 1)
    return torch.where(reached.any(-1), reached.argmax(-1), last)


def state_at_exit(states: Tensor, gate_logits: Tensor, threshold: float) -> Tensor:
    """Each token's state [..., d] at the loop that it stops at, of those after every loop [R, ..., d]."""
    places = exit_places(exit_distribution(gate_logits), threshold)[None, ..., None]
    return states.gather(0, places.expand(1, *states.shape[1:]))[0]
