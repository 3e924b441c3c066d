"""What a process keeps of the training state: bytes of parameters, gradients and optimizer state, per process."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from looprl.measure.meter import StepMeter
from looprl.training.zero import before_each_step, gradients_held, is_sharded, master_weights


class HeldMemory(TrainerCallback):
    """`memory/parameters`, `memory/gradients`, `memory/optimizer`: the most that a process held, in bytes.

    Only what lies on the training device counts, and storage that is shared counts once, as parameters first. A
    process's shards are its own, so ZeRO-1 to 3 show as less; the optimizer's part has its copy of the weights.
    """

    def __init__(self, trainer: Trainer, meter: StepMeter):
        self.trainer, self.meter = trainer, meter

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.deepspeed is not None:
            before_each_step(self.trainer.deepspeed, self._measure_gradients)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._measure_gradients()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.deepspeed is None:
            self._measure_gradients()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        parameters = self._storages(self._parameters())
        zero = self._zero_optimizer()
        optimizer = self.trainer.optimizer if zero is None else zero.optimizer
        held = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
        held += [] if zero is None else master_weights(zero)
        states = {place: size for place, size in self._storages(held).items() if place not in parameters}
        self.meter.maximum("memory/parameters", sum(parameters.values()))
        self.meter.maximum("memory/optimizer", sum(states.values()))

    def _measure_gradients(self) -> None:
        gradients = [p.grad for p in self.trainer.model.parameters() if p.grad is not None]
        zero = self._zero_optimizer()
        gradients += [] if zero is None else gradients_held(zero)
        self.meter.maximum("memory/gradients", sum(self._storages(gradients).values()))

    def _zero_optimizer(self) -> Any:
        return None if self.trainer.deepspeed is None else self.trainer.deepspeed.optimizer

    def _parameters(self) -> list[Tensor]:
        return [p.ds_tensor if is_sharded(p) else p.data for p in self.trainer.model.parameters()]

    def _storages(self, tensors: Iterable[Tensor]) -> dict[int, int]:
        device = self.trainer.accelerator.device.type
        storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == device]
        return {storage.data_ptr(): storage.nbytes() for storage in storages}
