"""Every touch of TRL 1.16's private methods.

`GRPOSeam` is TRL's trainer (with the checkpoints of `checkpoint_seam.py`) with the places that looprl changes turned
into methods of its own:

| TRL 1.16                                     | becomes                                                    |
|----------------------------------------------|------------------------------------------------------------|
| `VLLMGeneration`, built in `__init__`        | `make_rollouts()`: an object with sync_weights, generate   |
| `_generate_and_score_completions`            | `finish_rollout(batch, rewards)` on its result             |
| `_calculate_rewards`                         | timed; its result [N, functions] goes to `finish_rollout`  |
| `_get_per_token_logps_and_entropies`         | `score(model, ids, mask, rows, completion_length)`         |
| `_prepare_inputs`                            | called by `sample_batch()`                                 |
| `_compute_loss`                              | after `before_loss(batch)`; its batch is `micro_batch`     |
"""

from typing import Any, Protocol
from unittest.mock import patch

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from trl.trainer import grpo_trainer

from looprl.measure.meter import StepMeter
from looprl.training.checkpoint_seam import CheckpointSeam

TRL_VERSION = "1.16"
Batch = dict[str, Any]


class Rollouts(Protocol):
    """What TRL asks of its generation backend (`trl.generation.vllm_generation.VLLMGeneration`)."""

    def sync_weights(self) -> None: ...

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float]]], None]: ...


class GRPOSeam(CheckpointSeam):
    """See the module's docstring."""

    vllm_generation: Rollouts

    def __init__(self, *args: Any, **kwargs: Any):
        self.meter = StepMeter()
        self._micro_batch: Batch | None = None
        self._rewards: Tensor | None = None
        with patch.object(grpo_trainer, "VLLMGeneration", self.make_rollouts):
            super().__init__(*args, **kwargs)

    def make_rollouts(self, **trl_settings: Any) -> Rollouts:
        """Build the generation backend from the keyword arguments that TRL gives to its own."""
        raise NotImplementedError

    def finish_rollout(self, batch: Batch, rewards: Tensor) -> Batch:
        """Complete a rollout batch; rewards: [B * processes, functions], NaN where a function abstained."""
        raise NotImplementedError

    def score(
        self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor, rows: slice, completion_length: int
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [B, C] of the completion tokens of input_ids [B, P + C], rows of the batch."""
        raise NotImplementedError

    def before_loss(self, batch: Batch) -> None:
        """Look at a micro-batch before its loss is computed."""

    def finish_loss(self, loss: Tensor) -> Tensor:
        """The loss of a micro-batch as it is differentiated."""
        return loss

    @property
    def scores_rollouts(self) -> bool:
        """Whether old log-probs are scored by the trainer when a rollout is completed."""
        return True

    @property
    def micro_batch(self) -> Batch | None:
        """The batch whose loss is being computed; None while a rollout is being completed."""
        return self._micro_batch

    def sample_batch(self) -> Batch:
        """The first micro-batch of rollouts that training would see."""
        self.model.train()
        return self._prepare_inputs(next(iter(self.get_train_dataloader())))

    def logged_rollout(self) -> list[dict[str, Any]]:
        """Prompt, completion, rewards and advantage of each sample of the last rollout."""
        columns: dict[str, Any] = {
            "prompt": self._logs["prompt"],
            "completion": self._logs["completion"],
            **self._logs["rewards"],
            "advantage": self._logs["advantages"],
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _generate_and_score_completions(self, inputs: list[Batch]) -> Batch:
        with self.meter.remainder("batch"):
            batch = super()._generate_and_score_completions(inputs)
            assert self._rewards is not None
            return self.finish_rollout(batch, self._rewards)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        with self.meter.phase("reward"):
            self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, None]:
        if self._micro_batch is None and not self.scores_rollouts:
            unused = torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device)
            return unused, unused, None
        batch_size = batch_size or len(input_ids)
        scored = []
        with self.meter.phase("scoring"), self.accelerator.autocast():
            for start in range(0, len(input_ids), batch_size):
                rows = slice(start, start + batch_size)
                scored.append(self.score(model, input_ids[rows], attention_mask[rows], rows, logits_to_keep))
        logps, entropies = zip(*scored, strict=True)
        return torch.cat(logps), torch.cat(entropies), None

    def _compute_loss(self, model: nn.Module, inputs: Batch) -> Tensor:
        self.before_loss(inputs)
        self._micro_batch = inputs
        try:
            return self.finish_loss(super()._compute_loss(model, inputs))
        finally:
            self._micro_batch = None

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's training step; what is spent in no other phase is the backward pass."""
        with self.meter.remainder("backward"):
            return super().training_step(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the meter's values to what TRL logs in training."""
        if self.model.training:
            logs |= self.meter.flush(gather_object)
        super().log(logs, start_time)
