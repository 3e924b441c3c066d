"""How many loops a pretraining micro-batch runs."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

DepthPriorKind = Literal["fixed", "poisson_lognormal"]


@dataclass(frozen=True)
class DepthPrior:
    """A distribution over the number of loops.

    `fixed`: always `mean`. `poisson_lognormal`: 1 + Poisson(exp(tau)) with tau normal, of the given mean before
    the cut at `maximum`; sigma is tau's standard deviation (Geiping et al., 2025, arXiv:2502.05171, section 3.3).
    Raises ValueError on a mean below 1, a negative sigma, or a maximum below the mean.
    """

    kind: DepthPriorKind
    mean: float
    sigma: float = 0.5
    maximum: int = 64

    def __post_init__(self) -> None:
        if self.kind not in get_args(DepthPriorKind):
            raise ValueError(f"depth_prior is {self.kind!r}; choose from {', '.join(get_args(DepthPriorKind))}")
        if self.kind == "fixed" and self.mean != int(self.mean):
            raise ValueError(f"a fixed depth must be a whole number of loops, got {self.mean}")
        if self.mean < 1 or self.sigma < 0 or self.maximum < self.mean:
            raise ValueError(
                f"depth prior needs mean >= 1, sigma >= 0 and maximum >= mean, got mean {self.mean}, "
                f"sigma {self.sigma}, maximum {self.maximum}"
            )

    def draw(self, generator: torch.Generator) -> int:
        """One number of loops, in 1..maximum."""
        if self.kind == "fixed" or self.mean == 1:
            return int(self.mean)
        normal = torch.randn((), generator=generator)
        rate = torch.exp(math.log(self.mean - 1) - self.sigma**2 / 2 + self.sigma * normal)
        return min(1 + int(torch.poisson(rate, generator=generator)), self.maximum)
