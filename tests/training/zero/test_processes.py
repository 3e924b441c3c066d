"""The number of processes and the ZeRO settings are checked before anything is trained."""

import pytest

from looprl.training.config import LoopedGRPOConfig
from looprl.training.eval_config import EvalConfig
from looprl.training.gradients_config import GradientsConfig
from looprl.training.zero import zero_settings


def config(folder, **settings):
    return LoopedGRPOConfig(output_dir=str(folder), **settings)


@pytest.fixture
def launched(monkeypatch):
    """As in the first of two processes that a launcher started."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "false")  # restored afterwards; joining sets it
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("zero_stage", [2, None])
def test_more_processes_than_a_launcher_started_are_an_error(tmp_path, zero_stage):
    with pytest.raises(ValueError, match="num_processes is 2, but the launcher started 1"):
        config(tmp_path, num_processes=2, zero_stage=zero_stage)


def test_another_launchers_count_is_not_overruled(tmp_path, launched):
    with pytest.raises(ValueError, match="num_processes is 3, but the launcher started 2"):
        config(tmp_path, num_processes=3, zero_stage=2)


def test_bf16_under_zero_without_a_gpu_is_an_error(tmp_path, launched):
    with pytest.raises(ValueError, match="bf16 under ZeRO needs a GPU"):
        config(tmp_path, zero_stage=2, bf16=True)


def test_several_processes_need_a_stage(tmp_path, launched):
    with pytest.raises(ValueError, match="started 2 processes: set zero_stage"):
        config(tmp_path)


def test_accelerate_that_sees_one_process_where_two_were_started_is_an_error(tmp_path, monkeypatch, launched):
    """As where a script made an Accelerator() before, which on a CPU takes no notice of the launcher."""
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("LOCAL_RANK")
    config(tmp_path)  # sets accelerate up for this process alone
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError, match="launcher started 2 processes, but the trainer sees 1"):
        config(tmp_path, zero_stage=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero_stage": 2}, "ZeRO needs a launcher"),
        ({"deepspeed": zero_settings(2)}, "ZeRO needs a launcher"),
        ({"zero_stage": 1, "deepspeed": zero_settings(2)}, "exclude each other"),
        ({"offload_optimizer": True}, "offload_optimizer needs zero_stage"),
        ({"vllm_tensor_parallel_size": 2}, "1 processes cannot be divided into groups"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_would_do_nothing_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)


@pytest.mark.parametrize("settings", [EvalConfig, GradientsConfig])
def test_what_is_done_in_one_process_takes_a_recipe_of_several(tmp_path, settings):
    made = settings(output_dir=str(tmp_path), num_processes=2, zero_stage=3, offload_optimizer=True)
    assert (made.world_size, made.deepspeed) == (1, None)
