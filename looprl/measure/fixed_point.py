"""How the states of a looped model move from loop to loop, and whether they come to rest.

Everything is over the N real tokens of a batch, padding excluded, or the M of them after the prompts.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from looprl.data.documents import TokenBatch
from looprl.models.contract import LoopedForCausalLM, at_least_fp32
from looprl.models.loop import LoopContext


@dataclass(frozen=True)
class Unrolled:
    """A batch with its state after every loop: states[r] is z_r [B, T, d], r = 0..L."""

    batch: TokenBatch
    context: LoopContext
    injected: Tensor
    states: tuple[Tensor, ...]

    @property
    def real(self) -> Tensor:
        """[B, T], False for padding."""
        return self.batch.attention_mask.bool()


@torch.no_grad()
def unroll(
    model: LoopedForCausalLM, batch: TokenBatch, num_loops: int, initial_state: Tensor | None = None
) -> Unrolled:
    """Run `num_loops` loops on the full sequences, from z_0 [B, T, d] or the model's own, and keep all states."""
    context = model.model.context(batch.input_ids, batch.attention_mask)
    injected = model.model.prelude(batch.input_ids, batch.attention_mask, context)
    states = [model.model.initial_state(injected) if initial_state is None else initial_state.to(injected.dtype)]
    for _ in range(num_loops):
        states.append(model.model.core(states[-1], injected, *context))
    return Unrolled(batch, context, injected, tuple(states))


def residuals(unrolled: Unrolled) -> Tensor:
    """|F(z_r) - z_r| / |z_r| of each token, r = 1..L - 1: [L - 1, N]."""
    return torch.stack(
        [
            (after - before).norm(dim=-1)[unrolled.real] / before.norm(dim=-1)[unrolled.real]
            for before, after in _successive(unrolled)
        ]
    )


def angles(unrolled: Unrolled) -> Tensor:
    """The angle between z_r and z_{r+1} of each token in degrees, r = 1..L - 1: [L - 1, N].

    2 atan2(|a - b|, |a + b|) of the unit vectors a, b, which unlike their arc cosine is exact for small angles (Kahan).
    """
    units = [(F.normalize(before, dim=-1), F.normalize(after, dim=-1)) for before, after in _successive(unrolled)]
    return torch.stack(
        [2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1)).rad2deg()[unrolled.real] for a, b in units]
    )


def state_variances(many: list[Unrolled]) -> Tensor:
    """The variance of z_r over all tokens of all batches, averaged over the d components, r = 1..L: [L].

    Near 0 all tokens have the same state; growth without end means that the states do.
    """
    count = sum(int(unrolled.real.sum()) for unrolled in many)
    variances = []
    for r in range(1, len(many[0].states)):
        states = [unrolled.states[r][unrolled.real].double() for unrolled in many]
        mean = sum((state.sum(dim=0) for state in states), start=torch.zeros(())) / count
        squares = [(state - mean).square().sum(dim=0) for state in states]
        variances.append(torch.stack(squares).sum(dim=0).mean() / count)
    return torch.stack(variances)


def convergence_loops(residuals: Tensor, tolerance: float) -> Tensor:
    """The first loop from which on each token's residual stays below `tolerance`; 0 where it never does.

    residuals: [L, N], row r - 1 after loop r. Returns [N].
    """
    stays_below = (residuals < tolerance).flip(0).int().cumprod(dim=0).sum(dim=0)
    return torch.where(stays_below > 0, len(residuals) + 1 - stays_below, 0)


@torch.no_grad()
def next_token_nll(model: LoopedForCausalLM, unrolled: Unrolled, num_loops: int) -> Tensor:
    """Negative log-likelihood in nats of each token after the prompts, read out after `num_loops` loops: [M]."""
    batch = unrolled.batch
    hidden = model.model.coda(unrolled.states[num_loops], unrolled.context)[:, batch.prompt_length - 1 : -1]
    logits = at_least_fp32(model.lm_head(hidden[batch.follows]))
    return F.cross_entropy(logits, batch.input_ids[:, batch.prompt_length :][batch.follows], reduction="none")


def spectral_radii(
    model: LoopedForCausalLM, unrolled: Unrolled, num_loops: int, iterations: int, generator: torch.Generator
) -> Tensor:
    """The spectral radius of J = dF/dz at z_R of each sequence, R = `num_loops`, by power iteration with J^T: [B].

    Eigenvalues may be complex, so that single growth factors oscillate: the estimate is the geometric mean of those of
    the second half of the iterations. 0 where J^T took the vector to zero.
    """
    start = unrolled.states[num_loops].detach().requires_grad_()
    with torch.enable_grad():
        output = model.model.core(start, unrolled.injected, *unrolled.context)
    vector = torch.randn(start.shape, generator=generator).to(start) * unrolled.real.unsqueeze(-1)
    vector = vector / _norms(vector)
    logs = []
    for _ in range(iterations):
        (vector,) = torch.autograd.grad(output, start, vector, retain_graph=True)
        norms = _norms(vector)
        logs.append(norms.flatten().log())
        vector = torch.where(norms > 0, vector / norms, 0)
    return torch.stack(logs[iterations // 2 :]).mean(dim=0).exp()


def _successive(unrolled: Unrolled) -> list[tuple[Tensor, Tensor]]:
    """(z_r, z_{r+1}) for r = 1..L - 1."""
    return list(zip(unrolled.states[1:-1], unrolled.states[2:], strict=True))


def _norms(tensor: Tensor) -> Tensor:
    """The norm of each sequence, [B, 1, 1]."""
    return torch.linalg.vector_norm(tensor, dim=(1, 2), keepdim=True)
