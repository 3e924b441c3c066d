"""A run that goes on from a checkpoint is the run that never stopped; a full disk costs nothing that was saved."""

import logging
import resource
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file

from looprl.checkpoints import CheckpointError, verify
from looprl.errors import UserError
from looprl.rollout.worker_calls import WorkerCalls
from looprl.runs import RunFolder
from looprl.training.checkpoint_seam import check_resumable
from looprl.training.resume import check_same_settings
from tests.run_metrics import without_clocks
from tests.training.conftest import make_trainer

# Four steps an epoch; every kind of moment: within an epoch, at its end, in the next.
PLAIN = {"max_steps": 7}
# A rollout lasts for four micro-batches and two steps of a run that logs every third: no checkpoint is at the
# beginning of everything.
BUFFERED = {
    "max_steps": 7,
    "steps_per_generation": 2,
    "num_iterations": 3,
    "gradient_accumulation_steps": 2,
    "max_staleness": 2,
    "logging_steps": 3,
    "per_device_train_batch_size": 8,
}


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def run_on(folder, settings, resume=None):
    """The trainer, weights and logs at the end of a run, from the start or from a checkpoint."""
    trainer = make_trainer(folder, length, **settings)
    trainer.train(resume_from_checkpoint=resume)
    trainer.engine.close()
    weights = {name: tensor.detach().clone() for name, tensor in trainer.model.named_parameters()}
    rows = [without_clocks(row) for row in trainer.state.log_history]
    return trainer, weights, [row for row in rows if "loss" in row]


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@contextmanager
def disk_full_after(size):
    """The system refuses every write beyond that many bytes of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="module", params=[PLAIN, BUFFERED], ids=["plain", "buffered"])
def uninterrupted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    settings = request.param | {"save_steps": 1, "save_total_limit": None}
    return settings, *run_on(folder, settings)


def test_going_on_from_any_kind_of_step_ends_with_the_same_weights_and_logs(uninterrupted, tmp_path, monkeypatch):
    settings, trainer, weights, logs = uninterrupted
    load, synced = WorkerCalls.load_named_tensors, []

    def noted(worker, tensors):
        synced.append({name: tensor.clone() for name, tensor in tensors})
        load(worker, iter(synced[-1].items()))

    monkeypatch.setattr(WorkerCalls, "load_named_tensors", noted)
    for step in (4,) if settings.get("num_iterations") else (4, 5):
        synced.clear()
        checkpoint = trainer.checkpoints.path(step)
        saved = load_file(checkpoint / "model.safetensors")
        assert not same(saved, weights)
        _, its_weights, its_logs = run_on(tmp_path, settings, str(checkpoint))
        assert same(weights, its_weights)
        assert its_logs == logs
        if "num_iterations" not in settings:  # the step after draws a rollout
            assert same(saved, synced[0])
            assert logs[step]["step"] == step + 1 and logs[step]["replay/logprob_gap_max"] < 1e-5


def test_a_checkpoint_holds_rollouts_only_while_they_are_in_use(uninterrupted):
    settings, trainer, _, _ = uninterrupted
    held = []
    for step in trainer.checkpoints.steps():
        state = torch.load(trainer.checkpoints.path(step) / "loop_state-0-of-1.pt", weights_only=True)
        held.append(state["rollouts"] is not None)
    assert (trainer.rollouts_in_use is not None) == bool(trainer.vllm_generation.peek()) == held[-1]
    lasts = settings.get("num_iterations", 1) * settings.get("steps_per_generation", 1)
    per_step = settings.get("gradient_accumulation_steps", 1)
    assert held == [step * per_step % lasts != 0 for step in trainer.checkpoints.steps()]


def test_a_full_disk_costs_no_earlier_checkpoint_and_is_counted(tmp_path, caplog):
    trainer = make_trainer(tmp_path, length, max_steps=3, save_steps=1, save_total_limit=1)
    trainer.train()
    store = trainer.checkpoints
    assert store.steps() == [3]
    largest = max(path.stat().st_size for path in store.path(3).iterdir())
    trainer.state.global_step = 4
    for size in (0, 100, 3000, largest // 2, largest - 1):
        with disk_full_after(size), caplog.at_level(logging.WARNING):
            trainer._save_checkpoint(trainer.model, None)
        assert "could not be written" in caplog.text
        caplog.clear()
        verify(store.path(3))
        assert [entry.name for entry in store.folder.iterdir()] == ["step-3"]
    assert trainer.meter.flush()["dropped/checkpoints"] == 5
    with disk_full_after(100), pytest.raises(CheckpointError, match="those before it are whole"):
        trainer.save_checkpoint()
    trainer.save_checkpoint()
    assert store.steps() == [4]
    verify(store.path(4))
    trainer.engine.close()


def test_weights_alone_cannot_be_resumed_from(uninterrupted):
    _, trainer, _, _ = uninterrupted
    trainer.state.global_step = 8
    trainer.save_checkpoint(weights_only=True)
    with pytest.raises(CheckpointError, match="weights only"):
        trainer.train(resume_from_checkpoint=str(trainer.checkpoints.path(8)))


def test_another_number_of_processes_cannot_go_on(uninterrupted):
    _, trainer, _, _ = uninterrupted
    check_resumable(trainer.checkpoints.path(4), 1)
    with pytest.raises(CheckpointError, match=r"states of 1 process\(es\), so 2 cannot"):
        check_resumable(trainer.checkpoints.path(4), 2)


def test_settings_that_would_make_it_another_run_are_all_named(tmp_path, caplog):
    folder = RunFolder.create(tmp_path / "run")
    settings = {"seed": 0, "learning_rate": 1e-3, "adam_beta2": 0.99, "max_steps": 5, "lr_scheduler_type": "constant"}
    folder.write_config(settings)
    check_same_settings(folder.path, settings | {"max_steps": 9, "save_steps": 3})
    with pytest.raises(UserError) as caught:
        check_same_settings(folder.path, settings | {"learning_rate": 2e-3, "adam_beta2": 0.9, "num_loops": 3})
    for part in ("learning_rate (was 0.001, is 0.002)", "adam_beta2", "num_loops (was None, is 3)"):
        assert part in str(caught.value)
    assert "seed" not in str(caught.value)
    assert not caplog.text
    folder.write_config(settings | {"lr_scheduler_type": "cosine"})
    check_same_settings(folder.path, settings | {"lr_scheduler_type": "cosine", "max_steps": 9})
    assert "learning rates of cosine" in caplog.text
