"""The adjoint of a fixed point by a truncated Neumann series.

At a fixed point z* = F(z*; e) the implicit-function theorem turns dL/dz* = g into the adjoint v that solves
(I - J^T) v = g, with J = dF/dz. The series v = sum_k (J^T)^k g, cut after K products, is what backpropagation
through the last K + 1 loops would see if every one of them stood at z* (Fung et al., 2022, "JFB", K = 0,
arXiv:2103.12803; Geng et al., 2021, "On Training Implicit Models", K > 0, arXiv:2111.05177).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


def neumann_adjoint(cotangent: Tensor, transposed_jacobian: Product, steps: int) -> Tensor:
    """v = sum over k = 0..steps of (J^T)^k g.

    cotangent: g, any shape. transposed_jacobian: u -> J^T u, same shape. steps: K, the number of products.
    """
    adjoint = cotangent
    for _ in range(steps):
        adjoint = cotangent + transposed_jacobian(adjoint)
    return adjoint


class _ReplaceCotangent(torch.autograd.Function):
    """The identity, whose backward hands on `solve(g)` in the place of g."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, solve: Product) -> Tensor:
        ctx.solve = solve
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return ctx.solve(cotangent), None


def replay(loop: Callable[..., Tensor], state: Tensor, injected: Tensor, *context: Any, neumann_steps: int) -> Tensor:
    """Record one loop from a stored state, z+ = F(z; e), with the adjoint solved in its backward.

    state, injected: [B, T, d]. Returns z+ [B, T, d]: backward receives g = dL/dz+, solves for v with
    `neumann_steps` products on this very graph, and sends v once through F into its weights and into e.
    No gradient reaches `state`.
    """
    start = state.detach().requires_grad_(torch.is_grad_enabled())
    output = loop(start, injected, *context)
    if neumann_steps == 0 or not output.requires_grad:
        return output

    def transposed_jacobian(vector: Tensor) -> Tensor:
        return torch.autograd.grad(output, start, vector, retain_graph=True)[0]

    return _ReplaceCotangent.apply(output, lambda g: neumann_adjoint(g, transposed_jacobian, neumann_steps))
