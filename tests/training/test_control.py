"""The control of a run's gradient: what it logs, when it warns, and that it leaves the run as it was."""

import logging
from dataclasses import replace

import pytest
import torch

from looprl.data.tokenizer import build_tokenizer
from looprl.errors import UserError
from looprl.gradients import AdjointSolver, Estimator
from looprl.measure.meter import StepMeter
from looprl.measure.policy_gradient import by_part, cosines, norm, policy_gradient
from looprl.training.adjoint_log import AdjointLog
from looprl.training.control import GradientControl, policy_batch
from tests.training.conftest import GROUP, make_model, make_trainer

FULL = Estimator.preset("full")


def noisy_reward(completion_ids, **kwargs):
    """Depends on the completion and on torch's random state, which a control must leave alone."""
    return [(ids[0] % 2) + 0.1 * float(torch.rand(())) for ids in completion_ids]


def trained(folder, **settings):
    trainer = make_trainer(folder, noisy_reward, max_steps=10, **settings)
    trainer.train()
    trainer.engine.close()
    state = trainer.optimizer.state_dict()["state"]
    return (
        {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()},
        [value for slots in state.values() for value in slots.values()],
        torch.get_rng_state(),
        trainer.state.log_history,
    )


def test_weights_optimizer_and_random_state_after_ten_steps_are_those_without_a_control(tmp_path):
    weights, moments, random_state, history = trained(tmp_path / "a", control_every=3)
    plain_weights, plain_moments, plain_random_state, plain_history = trained(tmp_path / "b")
    assert all(torch.equal(weights[name], plain_weights[name]) for name in plain_weights)
    assert len(moments) == len(plain_moments) > 0
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(moments, plain_moments, strict=True))
    assert torch.equal(random_state, plain_random_state)
    controlled = [row["step"] for row in history if "control/cosine_to_full" in row]
    assert controlled == [1, 4, 7, 10] and not any("control/cosine_to_full" in row for row in plain_history)
    assert all(row["time/control"] > 0 for row in history if row.get("step") in controlled and "loss" in row)


@pytest.fixture(scope="module")
def control_batch(setting):
    """A micro-batch of unequal lengths with advantages, as TRL hands it to the loss."""
    prompts, records = setting.records([8, 3, 5, 1, 8, 2, 6, 4] * 2)
    return setting.batch(records, prompts, [float(i % 3) for i in range(2 * GROUP)])


def controlled(setting, batch, estimator, step=0):
    meter = StepMeter()
    control = GradientControl(1, estimator, 3, meter)
    control.run(setting.trainer.model, policy_batch(batch, estimator.replay_from, 1.0), step)
    return meter.flush()


def test_the_control_compares_the_gradient_of_the_loss_with_full_bptt_and_with_recompute(setting, control_batch):
    model, reuse = setting.trainer.model, Estimator.preset("reuse", 2)
    logged = controlled(setting, control_batch, reuse)
    batch = policy_batch(control_batch, "penultimate", 1.0)
    ours, recomputed, full = (
        policy_gradient(model, batch, estimator, 3).gradients
        for estimator in (reuse, Estimator.preset("recompute", 2), FULL)
    )
    parts = by_part(model)
    assert logged["control/cosine_to_full"] == pytest.approx(cosines(ours, full, parts)["all"], abs=1e-6)
    assert logged["control/cosine_to_full/core"] == pytest.approx(cosines(ours, full, parts)["core"], abs=1e-6)
    assert logged["control/norm_ratio"] == pytest.approx(norm(ours) / norm(full), rel=1e-5)
    assert logged["control/cosine_to_recompute"] == pytest.approx(cosines(ours, recomputed, parts)["all"], abs=1e-6)
    assert logged["control/recompute_to_full"] == pytest.approx(cosines(recomputed, full, parts)["all"], abs=1e-6)
    # the random model has not converged after 3 loops, so the three differ
    assert logged["control/cosine_to_full"] < 0.999 and logged["control/recompute_to_full"] < 0.999


def test_the_controlled_gradient_points_where_the_updates_does(setting, control_batch):
    update = setting.gradients(control_batch)
    batch = policy_batch(control_batch, "penultimate", setting.trainer.temperature)
    ours = policy_gradient(setting.trainer.model, batch, setting.trainer.estimator, 3).gradients
    assert cosines(ours, update, by_part(setting.trainer.model))["all"] == pytest.approx(1, abs=1e-6)


def test_full_bptt_is_its_own_control(setting, control_batch):
    logged = controlled(setting, control_batch, FULL)
    assert logged["control/cosine_to_full"] == pytest.approx(1, abs=1e-6)
    assert logged["control/norm_ratio"] == pytest.approx(1, abs=1e-5)
    assert "control/cosine_to_recompute" not in logged


def test_states_of_other_tokens_are_seen_and_warned_about(setting, control_batch, caplog):
    shifted = {**control_batch, "states": control_batch["states"].roll(1, dims=1)}
    with caplog.at_level(logging.WARNING, "looprl.training.control"):
        logged = controlled(setting, shifted, Estimator.preset("reuse", 2), step=7)
    assert logged["control/cosine_to_recompute"] < 0.9
    assert "step 7" in caplog.text and "full BPTT" in caplog.text and "looprl inspect" in caplog.text


def test_without_advantages_there_is_no_gradient_and_the_control_is_counted(setting, control_batch, caplog):
    silent = {**control_batch, "advantages": torch.zeros_like(control_batch["advantages"])}
    assert controlled(setting, silent, FULL) == {"control/without_advantages": 1}
    assert not caplog.records


def test_importance_ratios_weight_the_controlled_gradient(setting, control_batch):
    ratio = torch.linspace(0.5, 2, control_batch["completion_mask"].numel()).view_as(control_batch["completion_mask"])
    plain = policy_batch(control_batch, "penultimate", 1.0)
    weighted = policy_batch({**control_batch, "importance_sampling_ratio": ratio}, "penultimate", 1.0)
    torch.testing.assert_close(weighted.weights, plain.weights * ratio)


def test_a_control_happens_once_in_a_step_and_every_n_steps():
    control = GradientControl(2, FULL, 3, StepMeter())
    assert control.is_due(0) and not control.is_due(1) and control.is_due(2)
    control._last_step = 2
    assert not control.is_due(2) and control.is_due(4)
    assert not GradientControl(None, FULL, 3, StepMeter()).is_due(0)


def test_a_control_every_0_steps_is_refused(tmp_path):
    with pytest.raises(UserError, match="control_every must be at least 1, got 0"):
        make_trainer(tmp_path, noisy_reward, control_every=0)


# What the adjoint solver found


def found(steps, scale):
    """The solution of linear cores with J = scale x identity, the last sequence without a cotangent."""
    cotangent = torch.ones(len(scale) + 1, 4)
    cotangent[-1] = 0
    return AdjointSolver(steps)(cotangent, lambda vector: vector * torch.tensor([*scale, 1.0])[:, None])


def test_means_are_over_the_sequences_that_have_an_adjoint():
    meter = StepMeter()
    AdjointLog(meter)(found(2, [0.5, 0.25]))
    logged = meter.flush()
    assert logged["replay/neumann_steps"] == 2 and logged["replay/neumann_growth"] == 0
    assert logged["replay/spectral_estimate"] == pytest.approx(0.375)
    assert logged["replay/neumann_remainder"] == pytest.approx((0.25 / 1.75 + 0.0625 / 1.3125) / 2)


def test_a_sequence_whose_series_ends_at_once_counts_with_its_steps(caplog):
    meter = StepMeter()
    AdjointLog(meter)(found(3, [0.0, 0.5]))
    logged = meter.flush()
    assert logged["replay/neumann_steps"] == 3 and logged["replay/neumann_growth"] == 0 and not caplog.records


def test_growth_is_counted_every_time_and_warned_about_once(caplog):
    meter = StepMeter()
    log = AdjointLog(meter)
    for _ in range(2):
        log(found("auto", [0.5, 1.5, 1.2]))
    assert meter.flush()["replay/neumann_growth"] == 4
    assert (
        len(caplog.records) == 1
        and "does not contract" in caplog.text
        and "2 of 3 sequences" in caplog.text
        and "1.50" in caplog.text
    )


def test_auto_logs_the_steps_that_it_took(tmp_path):
    tokenizer = build_tokenizer()
    model = make_model(tokenizer, num_loops=6)
    trainer = make_trainer(
        tmp_path, noisy_reward, tokenizer, model, max_steps=1, neumann_steps="auto", neumann_tolerance=0.05
    )
    solutions = []
    log = trainer.estimator.on_solved
    trainer.estimator = replace(trainer.estimator, on_solved=lambda found: (solutions.append(found), log(found)))
    trainer.train()
    trainer.engine.close()
    row = trainer.state.log_history[0]
    steps = torch.cat([found.steps for found in solutions])
    assert row["replay/neumann_steps"] == pytest.approx(steps[steps > 0].mean().item()) and 1 <= steps.max() <= 5
    assert row["replay/spectral_estimate"] > 0 and 0 < row["replay/neumann_remainder"] < 1
