"""The control: every N steps, this run's gradient against full BPTT, on one micro-batch, without disturbing the run."""

import logging
from dataclasses import replace

import torch

from looprl.gradients import Estimator
from looprl.gradients.estimator import ReplayFrom
from looprl.measure.meter import StepMeter
from looprl.measure.policy_gradient import ALL, SAFE_COSINE, PolicyBatch, by_part, cosines, norm, policy_gradient
from looprl.models import LoopedForCausalLM
from looprl.rollout.random_state import preserved_random_state
from looprl.training.trl_seam import Batch

_logger = logging.getLogger(__name__)
_TRUTH = Estimator.preset("full_checkpointed")  # the gradient of full BPTT in the memory of one loop


class GradientControl:
    """Compares the estimator of a run with full BPTT, and `reuse` with `recompute` too, which tells its errors apart.

    `control/cosine_to_full` (and `/<part>`), `control/norm_ratio`; for `reuse` also `control/cosine_to_recompute`,
    which falls short of 1 by the reused state alone, and `control/recompute_to_full`, by the adjoint's truncation
    alone. The seconds go to `time/control`. Weights, their `.grad` and random states stay as they are.
    """

    def __init__(self, every: int | None, estimator: Estimator, num_loops: int, meter: StepMeter):
        self.every, self.estimator, self.num_loops, self.meter = every, estimator, num_loops, meter
        self._last_step: int | None = None

    def is_due(self, step: int) -> bool:
        """Whether the next micro-batch is the first one of a step to control; step 0 is the first."""
        return self.every is not None and step % self.every == 0 and step != self._last_step

    def run(self, model: LoopedForCausalLM, batch: PolicyBatch, step: int) -> None:
        """Measure at the optimizer step `step`, and warn where the gradient is far from full BPTT's.

        RLTT's gradient is, and not by a fault of its settings: there is no warning.
        """
        self._last_step = step
        if not batch.weights.any():
            self.meter.count("control/without_advantages", 1)  # every gradient is zero
            return
        with self.meter.phase("control"), preserved_random_state():
            parts = by_part(model)
            ours = policy_gradient(model, batch, self.estimator, self.num_loops).gradients
            full = policy_gradient(model, batch, _TRUTH, self.num_loops).gradients
            to_full = cosines(ours, full, parts)
            for part, cosine in to_full.items():
                self._log("cosine_to_full" if part == ALL else f"cosine_to_full/{part}", cosine)
            self._log("norm_ratio", norm(ours) / full_norm if (full_norm := norm(full)) else None)
            if self.estimator.state_from == "rollout":
                recompute = replace(self.estimator, state_from="trainer")
                recomputed = policy_gradient(model, batch, recompute, self.num_loops).gradients
                self._log("cosine_to_recompute", cosines(ours, recomputed, parts)[ALL])
                self._log("recompute_to_full", cosines(recomputed, full, parts)[ALL])
        cosine = to_full[ALL]
        is_another_objective = self.estimator.loop_weights is not None
        if not is_another_objective and (cosine is None or cosine < SAFE_COSINE):
            shown = "undefined" if cosine is None else f"{cosine:.4f}"
            _logger.warning(
                "step %d: the cosine of the gradient to full BPTT is %s, below %s: with these settings the update does "
                "not follow the true gradient. `looprl inspect` says whether this model's loop converges and which "
                "settings are safe; --estimator full is the true gradient",
                step,
                shown,
                SAFE_COSINE,
            )

    def _log(self, name: str, value: float | None) -> None:
        if value is not None:
            self.meter.mean(f"control/{name}", value, 1)


def policy_batch(batch: Batch, replay_from: ReplayFrom, temperature: float) -> PolicyBatch:
    """TRL's micro-batch as a PolicyBatch, with the loss's weights at the policy that sampled it.

    The normaliser, which changes no comparison, is the token count. Of a rollout that is several updates old the loss
    also weights and clips by the ratio to the old policy; the comparison does without.
    """
    mask = batch["completion_mask"]
    weights = batch["advantages"].unsqueeze(1) * mask / mask.sum().clamp_min(1)
    if "importance_sampling_ratio" in batch:
        weights = weights * batch["importance_sampling_ratio"]
    return PolicyBatch(
        input_ids=torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
        attention_mask=torch.cat([batch["prompt_mask"], mask], dim=1),
        weights=weights,
        states={replay_from: batch["states"][:, :-1]} if "states" in batch else {},
        sampler_logps=batch["sampling_per_token_logps"],
        temperature=temperature,
        initial_state_seed=seed_of(batch),
    )


def seed_of(batch: Batch) -> int | None:
    """What the rollouts of a batch drew their initial states from, None where they did not."""
    return int(batch["initial_state_seed"]) if "initial_state_seed" in batch else None
