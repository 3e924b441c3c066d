"""One replayed loop, whose backward pass solves for the adjoint."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from looprl.gradients.adjoint import AdjointSolution, AdjointSolver, Product

OnSolved = Callable[[AdjointSolution], object]


class _ReplaceCotangent(torch.autograd.Function):
    """The identity, whose backward hands on `solve(g)` in the place of g."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, solve: Product) -> Tensor:
        ctx.solve = solve
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return ctx.solve(cotangent), None


def replay(
    loop: Callable[..., Tensor],
    state: Tensor,
    injected: Tensor,
    *context: Any,
    solver: AdjointSolver,
    on_solved: OnSolved | None = None,
) -> Tensor:
    """Record one loop from a stored state, z+ = F(z; e), with the adjoint solved in its backward.

    state, injected: [B, T, d]. Returns z+ [B, T, d]: backward receives g = dL/dz+, solves for v with products on this
    very graph, tells `on_solved`, and sends v once through F into its weights and into e. No gradient reaches `state`.
    """
    start = state.detach().requires_grad_(torch.is_grad_enabled())
    output = loop(start, injected, *context)
    if solver.steps == 0 or not output.requires_grad:
        return output

    def transposed_jacobian(vector: Tensor) -> Tensor:
        return torch.autograd.grad(output, start, vector, retain_graph=True)[0]

    def solve(cotangent: Tensor) -> Tensor:
        solution = solver(cotangent, transposed_jacobian)
        if on_solved is not None:
            on_solved(solution)
        return solution.adjoint

    return _ReplaceCotangent.apply(output, solve)
