"""Every touch of the private parts of transformers 5.19 and TRL 1.16 that a checkpoint needs.

transformers' trainer saves and restores weights, optimizer, scheduler, scaler, random states and the data position
within an epoch, and that is used as it is. `CheckpointSeam` adds what it leaves out, in `loop_state-<rank>.pt`: where
TRL stands in its rollout buffer, the buffer itself while it is in use, and what was measured but not yet logged. It
changes where checkpoints go (`checkpoints/step-N/`, written aside and renamed) and winds the prompts' sampler forward
to the epoch, which neither of the two does.
"""

import logging
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer

from looprl.checkpoints import CheckpointError, CheckpointStore, step_of, verify
from looprl.measure.meter import StepMeter
from looprl.models import load_model
from looprl.training.distributed import from_main_process
from looprl.training.zero import overwrite

TRANSFORMERS_VERSION = "5.19"
STATE_FILE = "trainer_state.json"
_LOOP_STATE = "loop_state"  # -RANK-of-PROCESSES.pt
_LOGGED_COLUMNS = ("prompt", "completion", "advantages")

_logger = logging.getLogger(__name__)


def check_resumable(checkpoint: Path, processes: int) -> None:
    """CheckpointError unless so many processes can go on from the checkpoint."""
    states = sorted(checkpoint.glob(f"{_LOOP_STATE}-*.pt"))
    if not states:
        raise CheckpointError(
            f"{checkpoint} holds weights only (save_only_model, or save_strategy no), so the run cannot be resumed: "
            "start a new one from the model that `looprl export` makes of it"
        )
    if len(states) != processes:
        raise CheckpointError(
            f"{checkpoint} has the states of {len(states)} process(es), so {processes} cannot go on from it: start as "
            "many as before"
        )


class CheckpointSeam(GRPOTrainer):
    """See the module's docstring. The meter must be there before this class is initialised."""

    meter: StepMeter
    _saved_step: int | None = None  # the last step that has a checkpoint
    _restored: dict[str, Any] | None = None
    _epochs_done = 0
    _staging: Path | None = None
    _seconds_before = 0.0  # in training that came before `_began`
    _began: float | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.add_callback(_LoopState(self))

    @property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints of this run."""
        return CheckpointStore(Path(self.args.output_dir) / "checkpoints")

    @property
    def seconds_trained(self) -> float:
        """Seconds that training has taken up to now, in the runs too that this one goes on from."""
        return self._seconds_before + (time.perf_counter() - self._began if self._began is not None else 0.0)

    @property
    def rollouts_in_use(self) -> list[dict[str, Any]] | None:
        """The micro-batches of the rollout that updates are made from."""
        return self._buffered_inputs

    def forget_rollouts(self) -> None:
        """Let go of rollouts that no further update is made from: no state is kept past its step."""
        self._buffered_inputs = None

    @property
    def needs_rollouts(self) -> bool:
        """Whether an update is still to be made from the last rollout."""
        return self._step % (self.args.steps_per_generation * self.num_iterations) != 0

    def own_state(self) -> dict[str, Any]:
        """What a subclass must have back to go on exactly: numbers, text, tensors, lists and dicts of them."""
        return {}

    def restore_own_state(self, state: dict[str, Any]) -> None:
        """Take back what `own_state` gave."""

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> TrainOutput:
        """Train to the end; from a checkpoint's folder, or with True from the newest that is whole, go on from there.

        Raises:
            CheckpointError: True is given and there is no whole checkpoint, or it holds weights only.
        """
        checkpoint = None
        if resume_from_checkpoint:
            checkpoint = self._resumable(resume_from_checkpoint)
            done = TrainerState.load_from_json(str(checkpoint / STATE_FILE))
            state_file = checkpoint / self._loop_state_name()
            restored = torch.load(state_file, map_location=self.accelerator.device, weights_only=True)
            self._saved_step, self._seconds_before = done.global_step, restored["seconds"]
            if 0 < self.args.max_steps <= done.global_step:  # transformers would train one more
                self._load_from_checkpoint(str(checkpoint))
                self.state = done
                return TrainOutput(done.global_step, 0.0, {})
            self._restored, self._epochs_done = restored, int(done.epoch or 0)
        self._began = time.perf_counter()
        try:
            return super().train(str(checkpoint) if checkpoint else None, trial, ignore_keys_for_eval)
        finally:
            self._epochs_done, self._restored = 0, None
            self._seconds_before, self._began = self.seconds_trained, None

    def save_checkpoint(self, weights_only: bool = False) -> None:
        """Save the present step as a checkpoint, whole or not at all, unless it has been saved already.

        weights_only: without what is needed to resume.

        Raises:
            CheckpointError: the disk is full or faulty; the checkpoints before it are untouched.
        """
        step = self.state.global_step
        if self._saved_step == step:
            return
        try:
            if self.accelerator.is_main_process:
                self.checkpoints.stage(step)
            self.accelerator.wait_for_everyone()
            if not self.checkpoints.staging_path(step).is_dir():
                raise CheckpointError(
                    f"process {self.accelerator.process_index} does not see {self.checkpoints.folder}, which the first "
                    "process writes to: output_dir must lie on a file system that all machines share"
                )
            self._write(self.checkpoints.staging_path(step), weights_only)
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                self.checkpoints.publish(step)
                if self.args.save_total_limit:
                    self.checkpoints.thin_out(self.args.save_total_limit, step)
            self.accelerator.wait_for_everyone()
        except (OSError, RuntimeError, SafetensorError) as error:  # torch.save raises the second on a full disk
            if self.accelerator.is_main_process:
                self.checkpoints.clear_partial()
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written ({error}); those before it are whole. Make room "
                f"on the disk of {self.checkpoints.folder}"
            ) from error
        self._saved_step = step

    def _write(self, folder: Path, weights_only: bool) -> None:
        if weights_only or self.args.save_only_model:
            self.save_model(str(folder), _internal_call=True)
            return
        self._staging = folder
        try:
            super()._save_checkpoint(self.model_wrapped, None)
        finally:
            self._staging = None
        torch.save(self._loop_state(), folder / self._loop_state_name())

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Called by transformers' trainer. One process trains on without the checkpoint where it cannot be written."""
        with self.meter.phase("checkpoint"):
            try:
                self.save_checkpoint()
            except CheckpointError as error:
                if self.args.world_size > 1:
                    raise
                _logger.warning("%s. The run goes on and tries again at its next checkpoint", error)
                self.meter.count("dropped/checkpoints", 1)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging.parent) if self._staging is not None else super()._get_output_dir(trial)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """A run has its report; TRL would write a README.md into the run folder with each checkpoint."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        if self.shuffle_dataset:
            for _ in range(self._epochs_done):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """transformers looks for the model's own names of its tensors, but they are saved under the published ones."""
        saved = load_model(resume_from_checkpoint)
        ours, theirs = [[name for name, _ in each.named_parameters()] for each in (self.model, saved)]
        if wrong := sorted(set(ours) ^ set(theirs)):
            raise CheckpointError(f"the checkpoint's tensors are not this model's: {', '.join(wrong[:3])}, ...")
        overwrite(self.model, saved)

    def _whole(self, which: str | bool) -> Path:
        if isinstance(which, str):
            verify(Path(which))
            return Path(which)
        found = self.checkpoints.newest_good()
        if found is None:
            raise CheckpointError(f"{self.checkpoints.folder} has no checkpoint to resume from")
        return found

    def _resumable(self, which: str | bool) -> Path:
        found = from_main_process(lambda: self._whole(which))
        check_resumable(found, self.accelerator.num_processes)
        if found.parent == self.checkpoints.folder and self.accelerator.is_main_process:
            self.checkpoints.set_aside_after(step_of(found))
        return found

    def _loop_state_name(self) -> str:
        return f"{_LOOP_STATE}-{self.accelerator.process_index}-of-{self.accelerator.num_processes}.pt"

    def _loop_state(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds_trained,
            "micro_batches": self._step,
            "rollouts": self._buffered_inputs if self.needs_rollouts else None,
            "shown": {name: list(self._logs[name]) for name in _LOGGED_COLUMNS},
            "shown_rewards": {name: list(values) for name, values in self._logs["rewards"].items()},
            "loss": self._tr_loss,
            "logged_step": self._globalstep_last_logged,
            "metrics": {name: list(values) for name, values in self._metrics["train"].items()},
            "meter": self.meter.state(),
            "own": self.own_state(),
        }

    def restore_loop_state(self) -> None:
        """Take back the loop's state from the checkpoint that is being resumed from, if any."""
        if self._restored is None:
            return
        state, self._restored = self._restored, None
        self._step, self._buffered_inputs = state["micro_batches"], state["rollouts"]
        for name in _LOGGED_COLUMNS:
            self._logs[name].extend(state["shown"][name])
        for name, values in state["shown_rewards"].items():
            self._logs["rewards"][name].extend(values)
        self._tr_loss, self._globalstep_last_logged = state["loss"], state["logged_step"]
        self._metrics["train"].update(state["metrics"])
        self.meter.restore(state["meter"])
        self.restore_own_state(state["own"])


class _LoopState(TrainerCallback):
    """Restores the loop's state once transformers has set up its own, and lets go of rollouts after their last step."""

    def __init__(self, trainer: CheckpointSeam):
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.restore_loop_state()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        if not self.trainer.needs_rollouts:
            self.trainer.forget_rollouts()
