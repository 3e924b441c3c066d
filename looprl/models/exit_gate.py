"""An exit gate: after each loop it says how likely a token is to stop there, if it has not stopped before.

Published with Ouro (Zhu et al., 2025, arXiv:2510.25741).
"""

import torch
from torch import Tensor


def exit_distribution(gate_logits: Tensor) -> Tensor:
    """How likely each loop is the one that a token stops at, from gate logits [..., R]: [..., R].

    p_r = lambda_r (1 - lambda_1) ... (1 - lambda_{r-1}) with lambda = sigmoid(gate); the last takes all that is left.
    """
    stop = torch.sigmoid(gate_logits)
    left = torch.cat([torch.ones_like(stop[..., :1]), (1 - stop[..., :-1]).cumprod(-1)], dim=-1)
    return torch.cat([(stop * left)[..., :-1], left[..., -1:]], dim=-1)
