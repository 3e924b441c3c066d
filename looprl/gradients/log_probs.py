"""Log-probs of sampled tokens: the policy's, read out after the last loop, and those that a loss differentiates.

They are the same, but in RLTT (Williams and Tureci, 2026, arXiv:2602.10520), which assigns credit to every loop: there
the loss has sum_r w_r log pi_r(token), pi_r being the readout after loop r, with weights that sum to 1.

| weights       | w_r                                                                              |
|---------------|----------------------------------------------------------------------------------|
| `uniform`     | 1 / R                                                                            |
| `progressive` | r / (1 + 2 + ... + R), the paper's r^alpha / sum_s s^alpha at its alpha of 1     |
| `exit`        | the exit distribution at that token; as in the authors' code its gate is trained |
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from looprl.models.contract import LoopedCausalLMOutput, at_least_fp32
from looprl.models.exit_gate import exit_distribution

LoopWeights = Literal["uniform", "progressive", "exit"]
LOOP_WEIGHTS: tuple[str, ...] = get_args(LoopWeights)


@dataclass(frozen=True)
class TokenLogProbs:
    """policy: [B, C, V], of every token after the last loop. sampled: [B, C], those of the sampled tokens.

    objective: [B, C], what the loss differentiates: `sampled`, or RLTT's weighted mean over the loops.
    """

    policy: Tensor
    sampled: Tensor
    objective: Tensor

    @property
    def entropies(self) -> Tensor:
        """Of the policy, in nats: [B, C]. Tokens of probability 0, as those that pad a vocabulary, add nothing."""
        return -(self.policy.exp() * self.policy.clamp_min(torch.finfo(self.policy.dtype).min)).sum(-1)


def token_log_probs(
    output: LoopedCausalLMOutput, tokens: Tensor, temperature: float = 1.0, loop_weights: LoopWeights | None = None
) -> TokenLogProbs:
    """Log-probs at `temperature` of `tokens` [B, C] under logits [B, C, V], and with `loop_weights` under every loop's.

    ValueError on weights by the exit distribution of a model that has no exit gate.
    """
    assert output.logits is not None
    policy = _log_softmax(output.logits, temperature)
    sampled = _of(tokens, policy)
    if loop_weights is None:
        return TokenLogProbs(policy, sampled, sampled)
    assert output.loop_logits is not None
    earlier = [_of(tokens, _log_softmax(logits, temperature)) for logits in output.loop_logits[:-1]]
    by_loop = torch.stack([*earlier, sampled], dim=-1)
    weights = weights_of_loops(loop_weights, by_loop.shape[-1], output.gate_logits).to(by_loop)
    return TokenLogProbs(policy, sampled, (weights * by_loop).sum(-1))


def weights_of_loops(name: LoopWeights, num_loops: int, gate_logits: Tensor | None = None) -> Tensor:
    """The weights of R = `num_loops` loops: [R], or for `exit` [..., R] from gate logits [..., R].

    ValueError on `exit` without gate logits.
    """
    if name == "exit":
        if gate_logits is None:
            raise ValueError("loop_weights 'exit' needs a model with an exit gate")
        return exit_distribution(gate_logits)
    loops = torch.arange(1, num_loops + 1, dtype=torch.float64)
    weights = torch.ones_like(loops) if name == "uniform" else loops
    return weights / weights.sum()


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(at_least_fp32(logits) / temperature, dim=-1)


def _of(tokens: Tensor, logps: Tensor) -> Tensor:
    return logps.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
