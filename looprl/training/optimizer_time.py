"""Seconds that the optimizer takes, as transformers' trainer announces it."""

from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from looprl.measure.meter import StepMeter


class OptimizerTime(TrainerCallback):
    """Adds the time between `on_pre_optimizer_step` and `on_optimizer_step` to `time/optimizer`."""

    def __init__(self, meter: StepMeter):
        self.meter = meter
        self._running = ExitStack()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._running.enter_context(self.meter.phase("optimizer"))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._running.close()
