"""How the injected input e enters the core: z, e [..., d] -> the core blocks' input [..., d]."""

import math

import torch
from torch import Tensor, nn


class LinearInjection(nn.Module):
    """A linear map of concat[z, e]: the adapter of Huginn (Geiping et al., 2025, arXiv:2502.05171)."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.adapter = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def forward(self, state: Tensor, injected: Tensor) -> Tensor:
        return self.adapter(torch.cat([state, injected], dim=-1))


class AddInjection(nn.Module):
    """z + e, without parameters."""

    def forward(self, state: Tensor, injected: Tensor) -> Tensor:
        return state + injected


class DecayInjection(nn.Module):
    """D z + e with D a diagonal in (0, 1), learned through its logit."""

    def __init__(self, hidden_size: int, diagonal_init: float):
        super().__init__()
        self.diagonal_init = diagonal_init
        self.diagonal_logit = nn.Parameter(torch.empty(hidden_size))

    @property
    def diagonal_logit_init(self) -> float:
        return math.log(self.diagonal_init / (1 - self.diagonal_init))

    def forward(self, state: Tensor, injected: Tensor) -> Tensor:
        return torch.sigmoid(self.diagonal_logit) * state + injected


class OrthogonalInjection(DecayInjection):
    """Q (D z) + e with Q = I - e e^T / (|e|^2 + eps), per token.

    Q removes what points along e, so the result's component along e is exactly e: the input is neither
    amplified nor washed out however many loops are run.
    """

    eps = 1e-6

    def forward(self, state: Tensor, injected: Tensor) -> Tensor:
        decayed = torch.sigmoid(self.diagonal_logit) * state
        along = (injected * decayed).sum(-1, keepdim=True) / (injected.square().sum(-1, keepdim=True) + self.eps)
        return decayed + injected * (1 - along)


def make_injection(kind: str, hidden_size: int, diagonal_init: float) -> nn.Module:
    """The injection named `kind` (a value of `LoopLMConfig.injection`)."""
    if kind == "linear":
        return LinearInjection(hidden_size)
    if kind == "add":
        return AddInjection()
    return {"decay": DecayInjection, "orthogonal": OrthogonalInjection}[kind](hidden_size, diagonal_init)
