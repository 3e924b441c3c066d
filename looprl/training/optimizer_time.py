"""Seconds that the optimizer takes, as transformers' trainer announces it, or inside DeepSpeed."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from looprl.measure.meter import StepMeter


class OptimizerTime(TrainerCallback):
    """Adds the time between `on_pre_optimizer_step` and `on_optimizer_step` to `time/optimizer`.

    deepspeed: gives the DeepSpeed engine of the training, or None. Its step is part of accelerate's backward call,
    before either event.
    """

    def __init__(self, meter: StepMeter, deepspeed: Callable[[], Any]):
        self.meter, self.deepspeed = meter, deepspeed
        self._running = ExitStack()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        engine = self.deepspeed()
        if engine is not None:
            engine.step = self.meter.phase("optimizer")(engine.step)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._running.enter_context(self.meter.phase("optimizer"))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._running.close()
