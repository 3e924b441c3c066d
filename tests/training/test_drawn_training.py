"""The trainer's loops start where the sampler's did: under per-loop KV their log-probs are then the sampler's."""

import pytest

from looprl.data.tokenizer import build_tokenizer
from looprl.errors import UserError
from looprl.rollout.record import RolloutMismatchError
from tests.published import published_with_tokenizer
from tests.training.conftest import make_trainer, sums_modulo_seven
from tests.training.test_resume import run_on, same

EXACT, BROKEN = 1e-5, 1e-2
# Prompts of two lengths, rollouts shuffled into four micro-batches that last for two updates of the same weights.
STALE = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "num_iterations": 2,
    "max_staleness": 1,
    "learning_rate": 0.0,
}


def model():
    return build_tokenizer(), published_with_tokenizer("huginn", num_loops=3, kv_policy="per_loop")


def trainer_of(folder, **settings):
    settings = dict(initial_state="drawn", report_to=[], save_strategy="no", max_steps=4) | settings
    return make_trainer(folder, sums_modulo_seven, *model(), **settings)


def logged(folder, **settings):
    """Rows of the metrics of a run."""
    trainer = trainer_of(folder, **settings)
    try:
        trainer.train()
    finally:
        trainer.engine.close()
    return [row for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("estimator", ["full", "full_checkpointed", "truncated", "recompute", "reuse"])
def test_log_probs_are_the_sampler_s_whatever_the_estimator(estimator, tmp_path):
    rows = logged(tmp_path, estimator=estimator, loops_recorded=2, neumann_steps=0, **STALE)
    assert [row["replay/staleness"] for row in rows] == [0, 1, 0, 1]
    assert max(row["replay/logprob_gap_max"] for row in rows) < EXACT
    assert {"replay/residual" in row for row in rows} == {estimator == "reuse"}  # z_0 is no state that is replayed


def test_they_are_not_where_the_trainer_starts_from_zero(tmp_path, monkeypatch):
    monkeypatch.setattr("looprl.training.trainer.seed_of", lambda batch: None)
    rows = logged(tmp_path, estimator="full", **STALE)
    assert min(row["replay/logprob_gap_max"] for row in rows) > BROKEN


@pytest.mark.parametrize("initial_state", ["drawn", "zero"])
def test_recomputed_states_are_the_reused_ones_so_the_control_finds_equal_gradients(initial_state, tmp_path):
    rows = logged(
        tmp_path, initial_state=initial_state, estimator="reuse", control_every=1, max_steps=2, learning_rate=0.1
    )
    assert all(row["control/cosine_to_recompute"] > 1 - 1e-6 for row in rows)
    assert rows[0]["control/cosine_to_full"] < 1 - 1e-4


def test_rollouts_from_another_seed_are_refused(tmp_path):
    trainer = trainer_of(tmp_path, estimator="reuse")
    trainer.engine.seed += 1
    with pytest.raises(RolloutMismatchError, match="initial_state_seed"):
        trainer.train()
    trainer.engine.close()


def test_a_family_without_a_published_distribution_is_refused(tmp_path):
    with pytest.raises(UserError, match="looplm publishes no distribution of initial states"):
        make_trainer(tmp_path, sums_modulo_seven, initial_state="drawn")


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path):
    tokenizer, _ = model()
    settings = dict(initial_state="drawn", estimator="recompute", neumann_steps=2, max_steps=3, report_to=[])
    settings |= STALE | dict(learning_rate=1e-2, save_steps=1, save_total_limit=None, tokenizer=tokenizer)
    trainer, weights, logs = run_on(tmp_path / "whole", settings | dict(model=model()[1]))
    for step in (1, 2):  # within a rollout's two updates, and after them
        checkpoint = str(trainer.checkpoints.path(step))
        _, its_weights, its_logs = run_on(tmp_path / str(step), settings | dict(model=model()[1]), checkpoint)
        assert same(weights, its_weights) and its_logs == logs
