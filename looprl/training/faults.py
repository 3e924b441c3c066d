"""What a long run survives: an update that is not finite, and SIGTERM."""

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from looprl.errors import UserError
from looprl.training.trl_seam import GRPOSeam
from looprl.training.zero import skipped_update

SKIPPED = "dropped/nonfinite_updates"


def seen_in_gradients(loss: Tensor) -> Tensor:
    """The loss, with gradients that are not finite either where it is not."""
    return loss if torch.isfinite(loss) else loss * torch.nan


class NonFiniteGuard(TrainerCallback):
    """Skips an update whose gradient is NaN or infinite, counts it, and ends the run after `limit` in a row.

    A skipped update changes neither weights nor optimizer; it is a step like any other to all else. DeepSpeed skips
    it by itself, in all processes or in none, and does not move the learning rate's schedule then. With fp16 the loss
    scaler does this as part of its search, which is neither counted nor ended.
    """

    def __init__(self, trainer: GRPOSeam, limit: int):
        self.trainer, self.limit = trainer, limit
        self.in_a_row = 0

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.fp16:
            return
        finite = self._finite()
        self.in_a_row = 0 if finite else self.in_a_row + 1
        if self.trainer.accelerator.is_main_process:  # it is the same update in all of them
            self.trainer.meter.count(SKIPPED, float(not finite))
        if finite:
            return
        if self.trainer.deepspeed is None:
            self.trainer.model.zero_grad(set_to_none=True)  # an optimizer leaves alone what has no gradient
        if self.in_a_row >= self.limit:
            raise UserError(
                f"{self.in_a_row} updates in a row had a loss or gradient that is not finite; the last was that of "
                f"step {state.global_step + 1}, and its rollouts are in {self._save_rollouts(args, state)}. Lower "
                "learning_rate or max_grad_norm, or allow more with max_nonfinite_updates"
            )

    def _finite(self) -> bool:
        if self.trainer.deepspeed is not None:  # whose step was part of the backward call
            return not skipped_update(self.trainer.deepspeed)
        gradients = [p.grad for p in self.trainer.model.parameters() if p.grad is not None]
        return bool(torch.isfinite(get_total_norm(gradients)))

    def _save_rollouts(self, args: TrainingArguments, state: TrainerState) -> Path:
        rank = f"-rank-{args.process_index}" if args.world_size > 1 else ""
        file = Path(args.output_dir) / "nonfinite" / f"step-{state.global_step + 1}{rank}.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"step": state.global_step + 1, "rollouts": self.trainer.rollouts_in_use}, file)
        return file


class StopOnSigterm(TrainerCallback):
    """While it is entered, SIGTERM ends the training after the present step, with a checkpoint.

    any_process: whether something is true in one process at least, of those that train together.
    """

    def __init__(self, any_process: Callable[[bool], bool] = bool):
        self.any_process = any_process
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> "StopOnSigterm":
        self._before = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.requested = self.any_process(self.requested)
        if self.requested:
            control.should_save = control.should_training_stop = True
