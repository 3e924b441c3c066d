"""One policy gradient, by any estimator, without touching the model's `.grad`; and how two of them agree."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from looprl.gradients import AdjointSolution, Estimator, token_log_probs
from looprl.gradients.estimator import ReplayFrom
from looprl.models.contract import LoopedForCausalLM
from looprl.models.initial_state import drawn_initial_state

Gradients = dict[str, Tensor]
ALL = "all"
SAFE_COSINE = 0.99  # below this cosine to full BPTT, training warns and `looprl inspect` calls reuse unsafe


@dataclass(frozen=True)
class PolicyBatch:
    """Rollouts ready for a policy gradient: left-padded prompts and right-padded completions of C tokens.

    input_ids, attention_mask: [B, P + C]. weights: [B, C], the coefficient of each completion token's log-prob in the
    objective (advantage over normaliser; 0 for padding). states: [B, P + C - 1, d] by which state they are, for
    estimators that reuse the rollout's. sampler_logps: [B, C]. initial_state_seed: what z_0 was drawn from, for the
    other estimators; None for the model's own z_0.
    """

    input_ids: Tensor
    attention_mask: Tensor
    weights: Tensor
    states: Mapping[ReplayFrom, Tensor]
    sampler_logps: Tensor
    temperature: float = 1.0
    initial_state_seed: int | None = None


@dataclass(frozen=True)
class PolicyGradient:
    """gradients: by parameter name. logps: [B, C], after the last loop. state: z_R, [B, P + C - 1, d]. solution: what
    the adjoint solver found, None where there was none to find.
    """

    gradients: Gradients
    logps: Tensor
    state: Tensor
    solution: AdjointSolution | None


def policy_gradient(
    model: LoopedForCausalLM, batch: PolicyBatch, estimator: Estimator, num_loops: int
) -> PolicyGradient:
    """The gradient of - sum(weights x log-probs) over the trainable parameters; RLTT's are weighted over the loops.

    ValueError when the estimator replays a state that the batch does not hold.
    """
    ids, mask = batch.input_ids[:, :-1], batch.attention_mask[:, :-1]
    state: Tensor | None
    if estimator.state_from == "rollout":
        if estimator.replay_from not in batch.states:
            raise ValueError(f"the rollouts hold no {estimator.replay_from} states to replay from")
        state = batch.states[estimator.replay_from]
    else:
        state = drawn_initial_state(model.config, batch.initial_state_seed, ids, mask)
    solutions: list[AdjointSolution] = []
    completion_length = batch.weights.shape[1]
    with torch.enable_grad():
        output = model(
            ids,
            mask,
            num_loops=num_loops,
            initial_state=state,
            loop_runner=replace(estimator, on_solved=solutions.append),
            logits_to_keep=completion_length,
        )
        tokens = batch.input_ids[:, -completion_length:]
        logps = token_log_probs(output, tokens, batch.temperature, estimator.loop_weights)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        found = torch.autograd.grad(
            -(batch.weights * logps.objective).sum(), list(parameters.values()), allow_unused=True
        )
    gradients = {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(parameters.items(), found, strict=True)
    }
    return PolicyGradient(gradients, logps.sampled.detach(), output.state.detach(), solutions[0] if solutions else None)


def by_part(model: LoopedForCausalLM) -> dict[str, list[str]]:
    """Parameter names of each part of the model, and of `all` of it."""
    parts = model.parameters_by_part()
    return {ALL: [name for names in parts.values() for name in names], **parts}


def cosines(ours: Gradients, theirs: Gradients, parts: Mapping[str, list[str]]) -> dict[str, float | None]:
    """Cosine of the two gradients in each part; None where one of them is zero."""
    return {part: _cosine(ours, theirs, names) for part, names in parts.items()}


def norm(gradients: Gradients) -> float:
    """The norm of all gradients together."""
    return _dot(gradients, gradients, list(gradients)) ** 0.5


def _cosine(ours: Gradients, theirs: Gradients, names: list[str]) -> float | None:
    scale = (_dot(ours, ours, names) * _dot(theirs, theirs, names)) ** 0.5
    return _dot(ours, theirs, names) / scale if scale > 0 else None


def _dot(ours: Gradients, theirs: Gradients, names: list[str]) -> float:
    return sum(float(ours[name].flatten().double() @ theirs[name].flatten().double()) for name in names)
