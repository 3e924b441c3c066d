"""RLTT in the trainer: its loss has every loop's log-probs, all that is compared with the sampler the last loop's."""

import pytest
import torch

from looprl.data.tokenizer import build_tokenizer
from looprl.errors import UserError
from looprl.gradients import Estimator
from looprl.gradients.log_probs import LOOP_WEIGHTS
from looprl.measure.policy_gradient import PolicyBatch, cosines, norm, policy_gradient
from looprl.training.control import policy_batch
from tests.published import published_with_tokenizer
from tests.training.conftest import GROUP, Setting, make_model, make_trainer

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8] * 2
REWARDS = [1.0, 0.0, 0.5, 0.0] * 4
GATE = {"model.early_exit_gate.weight", "model.early_exit_gate.bias"}
LOOPS = 3


def ouro_trainer(folder, reward, weights, **settings):
    model = published_with_tokenizer("ouro", num_loops=LOOPS)
    return make_trainer(folder, reward, model=model, estimator="rltt", loop_weights=weights, **settings)


@pytest.fixture(scope="module")
def rltt(tmp_path_factory):
    rewards = []
    trainer = ouro_trainer(tmp_path_factory.mktemp("run"), lambda prompts, **_: list(rewards), "exit", temperature=0.8)
    yield Setting(trainer, rewards)
    trainer.engine.close()


@pytest.fixture(scope="module")
def batch(rltt):
    prompts, records = rltt.records(LENGTHS)
    return rltt.batch(records, prompts, REWARDS)


def test_what_is_compared_with_the_sampler_is_the_last_loop(rltt, batch):
    """K/V of every loop are kept, so the last loop's log-probs are the sampler's, and a weighted mean's are not."""
    kept = batch["completion_mask"].bool()
    ratio = batch["importance_sampling_ratio"][kept]
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)
    rltt.trainer.meter.flush()
    rltt.gradients(batch)
    assert rltt.trainer.meter.flush()["replay/logprob_gap_max"] < 1e-4
    model, inputs = rltt.trainer.model, policy_batch(batch, "penultimate", 0.8)
    ours = policy_gradient(model, inputs, rltt.trainer.estimator, LOOPS)
    assert (ours.logps - batch["sampling_per_token_logps"])[kept].abs().max() < 1e-4


@pytest.mark.parametrize("weights", LOOP_WEIGHTS)
def test_the_update_is_the_advantage_times_the_gradient_of_the_weighted_log_probs(rltt, batch, weights, monkeypatch):
    """The ratio to the old policy is exactly 1: an old log-prob that is not the loss's own would scale or clip it."""
    trainer, estimator = rltt.trainer, Estimator.preset("rltt", loop_weights=weights)
    monkeypatch.setattr(trainer, "estimator", estimator)
    weighting = batch["advantages"][:, None] * batch["completion_mask"] * batch["importance_sampling_ratio"]
    inputs = policy_batch(batch, "penultimate", 0.8)
    inputs = PolicyBatch(**vars(inputs) | {"weights": weighting / (2 * GROUP * trainer.max_completion_length)})
    expected = policy_gradient(trainer.model, inputs, estimator, LOOPS).gradients
    full = policy_gradient(trainer.model, inputs, Estimator.preset("full"), LOOPS).gradients
    found = rltt.gradients(batch)
    parts = {"all": list(expected)}
    found |= {name: torch.zeros_like(gradient) for name, gradient in expected.items() if name not in found}
    assert cosines(found, expected, parts)["all"] == pytest.approx(1, abs=1e-6)
    assert norm(found) == pytest.approx(norm(expected), rel=1e-5)
    assert cosines(found, full, parts)["all"] < 0.99


def test_no_log_prob_of_the_sampler_is_taken_for_an_old_one(batch):
    assert "old_per_token_logps" not in batch


def test_the_gradient_does_not_depend_on_the_micro_batch_split(rltt, batch):
    whole, parts = rltt.gradients(batch), rltt.gradients(batch, micro_batches=8)
    for name, gradient in whole.items():
        assert float((parts[name] - gradient).norm() / gradient.norm()) < 1e-5, name


def even_tokens(completion_ids, **columns):
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


@pytest.mark.parametrize("weights", ["exit", "uniform"])
def test_three_steps_train_every_tensor_and_the_gate_where_it_weights_the_loops(weights, tmp_path, caplog):
    trainer = ouro_trainer(tmp_path, even_tokens, weights, max_steps=3, control_every=1, save_strategy="no")
    model, seen = trainer.model, []
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    class Kept(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            seen.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
            return super().step(*args, **kwargs)

    trainer.optimizer = Kept(model.parameters(), lr=1e-3)
    trainer.train()
    trainer.engine.close()
    left_out = model.left_as_they_are(None, weighted_by_exit=weights == "exit").keys()
    assert left_out == (set() if weights == "exit" else GATE)
    assert len(seen) == 3
    for step in seen:
        assert step.keys() == before.keys() - left_out
        assert all(gradient.isfinite().all() and gradient.any() for gradient in step.values())
    assert all(torch.equal(before[name], p) == (name in left_out) for name, p in model.named_parameters())
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert all(row["replay/logprob_gap_max"] < 1e-4 and row["clip_ratio/region_mean"] == 0 for row in rows)
    assert all(row["control/cosine_to_full"] < 0.99 for row in rows)  # another objective, not a fault to warn about
    assert "full BPTT" not in caplog.text


def test_the_exit_distribution_of_a_family_without_a_gate_is_refused_before_anything_starts(tmp_path):
    tokenizer = build_tokenizer()
    with pytest.raises(
        UserError, match=r"loop_weights exit, unlike uniform .* exit gate; LoopLM, .*: the model has none"
    ):
        make_trainer(tmp_path, even_tokens, tokenizer, make_model(tokenizer), estimator="rltt", loop_weights="exit")
