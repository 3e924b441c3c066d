"""The adjoint of a fixed point, from a few products with the transposed Jacobian.

At a fixed point z* = F(z*; e) the implicit-function theorem turns dL/dz* = g into the adjoint v that solves
(I - J^T) v = g, with J = dF/dz. The Neumann series v = sum_k (J^T)^k g, cut after K products, is what backpropagation
through the last K + 1 loops would see if every one of them stood at z* (Fung et al., 2022, "JFB", K = 0,
arXiv:2103.12803; Geng et al., 2021, "On Training Implicit Models", K > 0, arXiv:2111.05177).

Sequences of a batch do not read each other, so each is a linear system of its own: norms, stopping and coefficients
are per sequence, and nothing depends on which sequences share a batch. Padding has a cotangent of exactly zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
NeumannSteps = int | Literal["auto"]
AdjointMethod = Literal["neumann", "least_squares"]


CATASTROPHIC_GROWTH = 2.0


@dataclass(frozen=True)
class AdjointSolution:
    """v, and what its series showed, a number for each of the B sequences.

    adjoint: v, shaped like g. steps: K, the products whose term is in v. remainder: the last term over v,
    |(J^T)^K g| / |v|. growth: the last ratio of neighbouring terms, |(J^T)^k g| / |(J^T)^(k-1) g|, an estimate of J's
    spectral radius that is low after few products; NaN without a product. grew: whether any term was larger than the
    one before. A sequence whose g is zero has 0 steps, remainder 0 and growth NaN.
    """

    adjoint: Tensor
    steps: Tensor
    remainder: Tensor
    growth: Tensor
    grew: Tensor

    @property
    def solved(self) -> Tensor:
        """Which sequences have a g to solve for, bool [B]."""
        return self.adjoint.flatten(1).ne(0).any(dim=1)


@dataclass(frozen=True)
class AdjointSolver:
    """How v is computed from g: `solver(g, product)`.

    steps: K, or `auto`: each sequence goes on until the terms to come, judged by the last two, are at most `tolerance`
    times v, and for `most_steps` products at most. A term larger than the one before, by a factor rho > 1, is the sign
    of a core that does not contract (a non-normal J can grow for a while and contract all the same): `auto` divides
    that term and all later ones by rho^2, so that they shrink as fast as they would have grown, and ends at once where
    rho reaches `CATASTROPHIC_GROWTH`. Full BPTT of a core that does not contract still has R terms, so leaving all of
    them out at the first growth would be the worse gradient.
    method: `neumann` sums the terms; `least_squares` weights them for the least residual |(I - J^T) v - g| and smooths
    once, v <- g + J^T v, which takes no further product. Raises ValueError on values that mean nothing.
    """

    steps: NeumannSteps = 4
    method: AdjointMethod = "neumann"
    tolerance: float = 0.2
    most_steps: int = 16

    def __post_init__(self) -> None:
        if isinstance(self.steps, str) and self.steps != "auto":
            raise ValueError(f"neumann_steps must be a number or 'auto', got {self.steps!r}")
        if not isinstance(self.steps, str) and self.steps < 0:
            raise ValueError(f"neumann_steps must be 0 or more, got {self.steps}")
        if self.method not in get_args(AdjointMethod):
            raise ValueError(f"adjoint_solver is {self.method!r}; choose from {', '.join(get_args(AdjointMethod))}")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"neumann_tolerance must lie in (0, 1), got {self.tolerance}")

    def __call__(self, cotangent: Tensor, transposed_jacobian: Product) -> AdjointSolution:
        """Solve for v; cotangent: g [B, ...]; transposed_jacobian: u -> J^T u, same shape."""
        auto = self.steps == "auto"
        adjoint, terms, norm = cotangent, [cotangent], _norms(cotangent)
        active = norm > 0
        weight, remainder = torch.ones_like(norm), active.to(norm.dtype)
        steps, growth = torch.zeros_like(norm), torch.full_like(norm, torch.nan)
        grew = torch.zeros_like(active)
        for _ in range(self.most_steps if isinstance(self.steps, str) else self.steps):
            if auto and not active.any():
                break
            term = transposed_jacobian(terms[-1])
            last, norm = norm, _norms(term)
            growth = torch.where(active, norm / last, growth)
            grew |= active & (last > 0) & ~(growth < 1)  # NaN too
            if auto:
                active = active & (last > 0) & (growth < CATASTROPHIC_GROWTH)
                term = torch.where(_per_sequence(active, term), term, 0)
                weight = torch.where(active, weight / growth.clamp_min(1).square(), 0)
            adjoint = adjoint + _per_sequence(weight.to(term.dtype), term) * term if auto else adjoint + term
            steps = steps + active
            remainder = torch.where(active, weight * norm / _norms(adjoint), remainder)
            if auto:
                shrinks = torch.minimum(growth, 1 / growth)
                active = active & ~(remainder * shrinks <= self.tolerance * (1 - shrinks))
            terms = [*terms, term] if self.method == "least_squares" else [term]
        if self.method == "least_squares":
            adjoint = least_squares_adjoint(terms, steps)
        return AdjointSolution(adjoint, steps, remainder, growth, grew)


def least_squares_adjoint(terms: list[Tensor], steps: Tensor) -> Tensor:
    """g + J^T u, where u is the combination of terms with the least residual |(I - J^T) u - g|.

    terms: t_k = (J^T)^k g, k = 0..K, each [B, ...]. steps: [B], how many products count for each sequence; u combines
    the terms below it, so that J^T u is known without a further product. It is GMRES on the Krylov space of g, with a
    set of coefficients for each sequence (Saad & Schultz, 1986).
    """
    if len(terms) == 1:
        return terms[0]
    stacked = torch.stack([term.flatten(1) for term in terms], dim=1).double()
    used = torch.arange(len(terms) - 1, device=steps.device) < steps.unsqueeze(1)
    columns = (stacked[:, :-1] - stacked[:, 1:]) * used.unsqueeze(-1)
    gram, target = columns @ columns.mT, columns @ stacked[:, 0].unsqueeze(-1)
    finite = gram.isfinite().all(dim=(1, 2), keepdim=True)
    gram = torch.where(finite, gram, 0)  # of anything else pinv raises
    coefficients = torch.linalg.pinv(gram, hermitian=True) @ target * used.unsqueeze(-1)
    smoothed = stacked[:, 0] + (coefficients * stacked[:, 1:]).sum(dim=1)
    smoothed = torch.where(finite[:, 0], smoothed, torch.nan)
    return smoothed.to(terms[0].dtype).view_as(terms[0])


def _norms(tensor: Tensor) -> Tensor:
    """The norm of each sequence, [B], in single precision at least."""
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _per_sequence(values: Tensor, like: Tensor) -> Tensor:
    """[B] -> [B, 1, ..., 1], to go with `like`."""
    return values.view(-1, *(1 for _ in like.shape[1:]))
