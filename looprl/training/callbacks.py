"""What a run shows while it goes on: a line of `metrics.jsonl` per log, and one progress line."""

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from tqdm import tqdm
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from looprl.runs import RunFolder

_BAR_FORMAT = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class MetricsToRunFolder(TrainerCallback):
    """Write each log of the training to the run folder's `metrics.jsonl`, with its step.

    The totals that transformers logs at the end (`train_runtime`, ...) belong to no step and are left out.
    """

    def __init__(self, run_folder: RunFolder) -> None:
        self.run_folder = run_folder

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            self.run_folder.append_metrics({"step": state.global_step, **logs})


class ProgressLine(TrainerCallback):
    """One live line with the reward, the mean completion length and the seconds of the last step.

    Where the stream is not a terminal, a plain line is printed after about every tenth of the steps instead.
    With `log_completions` TRL prints a table after each log: the live line makes room for it until the next step.
    Without a reward, as in pretraining, the loss is shown.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._bar: tqdm[Any] | None = None
        self._metrics: dict[str, str] = {}
        self._seconds = ""
        self._step = 0
        self._total = 0
        self._step_began = 0.0
        self._line_is_due = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        self._step, self._total = state.global_step, state.max_steps
        self._step_began = time.perf_counter()
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._total,
                initial=self._step,
                file=self._stream,
                dynamic_ncols=True,
                bar_format=_BAR_FORMAT,
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._print_due_line()
        if self._bar is not None:
            self._bar.refresh()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        now = time.perf_counter()
        self._seconds, self._step_began = f"{now - self._step_began:.2f}", now
        if _tenths(state.global_step, self._total) > _tenths(self._step, self._total):
            # The step's own log comes after this event, so the line waits for it.
            self._line_is_due = self._bar is None
        if self._bar is not None:
            self._bar.update(state.global_step - self._step)
            self._bar.set_postfix(self._shown())
        self._step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero:
            return
        self._metrics |= _highlights(logs or {})
        if self._bar is not None:
            tables_follow = getattr(args, "log_completions", False)
            self._bar.set_postfix(self._shown(), refresh=not tables_follow)
            if tables_follow:
                self._bar.clear()
        self._print_due_line()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._print_due_line()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _shown(self) -> dict[str, str]:
        return {**self._metrics, "s/step": self._seconds}

    def _print_due_line(self) -> None:
        if self._line_is_due:
            self._line_is_due = False
            numbers = ", ".join(f"{name} {value}" for name, value in self._shown().items())
            print(f"step {self._step}/{self._total}: {numbers}", file=self._stream, flush=True)


def show_only_progress_line(trainer: Trainer, stream: TextIO | None = None) -> None:
    """Put a ProgressLine in the place of transformers' own displays, which print each log as a dict."""
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ProgressLine(stream))


def _highlights(logs: Mapping[str, Any]) -> dict[str, str]:
    names = {"reward": "reward", "completions/mean_length": "length"}
    if "reward" not in logs:
        names["loss"] = "loss"
    return {label: f"{logs[name]:.3g}" for name, label in names.items() if logs.get(name) is not None}


def _tenths(step: int, total: int) -> int:
    """Return how many tenths of the steps are done."""
    return 10 * step // max(total, 1)
