"""Fails loudly when the parts of DeepSpeed and accelerate that looprl stands on move."""

import inspect
from importlib.metadata import version

import deepspeed
import pytest
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from looprl.training.distributed import ACCELERATE_VERSION
from looprl.training.zero import DEEPSPEED_VERSION, skip_shared_memory_build


@pytest.mark.parametrize(("package", "pinned"), [("deepspeed", DEEPSPEED_VERSION), ("accelerate", ACCELERATE_VERSION)])
def test_the_version_is_the_one_that_looprl_was_written_for(package, pinned):
    assert version(package).startswith(f"{pinned}.")


def test_skipping_an_op_lasts():
    assert "deepspeed_shm_comm" in deepspeed.ops.__compatible_ops__
    skip_shared_memory_build()
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (DeepSpeedZeroOptimizer, ["averaged_gradients", "all_grad_tensors", "single_partition_of_fp32_groups"]),
        (DeepSpeedZeroOptimizer_Stage3, ["averaged_gradients", "fp32_partitioned_groups_flat"]),
    ],
)
def test_the_optimizers_keep_what_the_memory_report_reads(optimizer, names):
    source = inspect.getsource(optimizer)
    assert all(f"self.{name} =" in source for name in names)


def test_the_engine_says_whether_it_left_out_an_update():
    """Which its optimizers do by the norm of all gradients, in single precision too."""
    assert "self._step_applied = not overflow" in inspect.getsource(DeepSpeedEngine._take_model_step)
    for optimizer in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3):
        assert "is_invalid_grad_norm(scaled_global_grad_norm)" in inspect.getsource(optimizer)


def test_accelerate_steps_within_its_backward():
    """So the optimizer's seconds and gradients are seen from the engine's own step only."""
    source = inspect.getsource(DeepSpeedEngineWrapper.backward)
    assert "self.engine.backward(loss" in source and "self.engine.step()" in source
