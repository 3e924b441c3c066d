"""Fails loudly when the private parts of transformers and TRL that checkpoints stand on move."""

import inspect
from importlib.metadata import version

import pytest
from transformers import Trainer
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from looprl.training.checkpoint_seam import TRANSFORMERS_VERSION


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_transformers_is_the_version_that_the_seam_was_written_for():
    assert version("transformers").startswith(f"{TRANSFORMERS_VERSION}.")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("_save_checkpoint", ["self", "model", "trial"]),
        ("_get_output_dir", ["self", "trial"]),
        ("_get_train_sampler", ["self", "dataset"]),
        ("_load_from_checkpoint", ["self", "resume_from_checkpoint", "model"]),
        ("train", ["self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"]),
        ("save_model", ["self", "output_dir", "_internal_call"]),
    ],
)
def test_the_methods_that_are_overridden_or_called_have_their_signatures(method, expected):
    assert parameters(getattr(GRPOTrainer, method)) == expected


@pytest.mark.parametrize(
    ("owner", "method", "text"),
    [
        (Trainer, "_save_checkpoint", 'f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"'),
        (Trainer, "_save_checkpoint", "self._get_output_dir(trial=trial)"),
        (Trainer, "train", "self._load_from_checkpoint(resume_from_checkpoint)"),
        (Trainer, "_prepare_for_training", "deepspeed_load_checkpoint("),
        (Trainer, "_save_optimizer_and_scheduler", "self.model_wrapped.save_checkpoint(output_dir)"),
        (GRPOTrainer, "_save_checkpoint", "self.create_model_card(model_name=model_name)"),
        (Trainer, "_inner_training_loop", "self._tr_loss = torch.tensor(0.0"),
        (Trainer, "_inner_training_loop", "self._globalstep_last_logged = self.state.global_step"),
        (Trainer, "_run_epoch", "self.state.epoch = epoch + (step + 1) / steps_in_epoch"),
        (Trainer, "_run_epoch", "train_dataloader = skip_first_batches("),
        (GRPOTrainer, "__init__", "self._step = 0"),
        (GRPOTrainer, "__init__", "self._buffered_inputs = None"),
        (GRPOTrainer, "_prepare_inputs", "self._buffered_inputs[self._step % self.args.steps_per_generation]"),
        (GRPOTrainer, "__init__", 'self._metrics = {"train": defaultdict(list)'),
        (RepeatSampler, "__iter__", "torch.randperm(self.num_samples, generator=self.generator)"),
    ],
)
def test_what_is_saved_and_restored_is_still_kept_there(owner, method, text):
    assert text in inspect.getsource(getattr(owner, method))


def test_what_the_loop_sets_up_comes_before_the_callback_that_restores():
    source = inspect.getsource(Trainer._inner_training_loop)
    assert source.index("self._globalstep_last_logged =") < source.index("callback_handler.on_train_begin")
    assert source.index("callback_handler.on_train_begin") < source.index("self._run_epoch(")
