"""RL with reuse reaches every tensor of a published model, save those that the family names."""

import math

import pytest
import torch

from looprl.data.tokenizer import build_tokenizer
from looprl.models import load_model
from tests.published import MODELS, published_with_tokenizer, save_published
from tests.training.conftest import make_trainer, sums_modulo_seven


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_with_reuse_move_every_trained_tensor(name, tmp_path):
    tokenizer = build_tokenizer()
    model = published_with_tokenizer(name, num_loops=3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    seen = []

    class Kept(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            seen.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
            return super().step(*args, **kwargs)

    trainer = make_trainer(
        tmp_path, sums_modulo_seven, tokenizer, model, max_steps=3, estimator="reuse", report_to=[], save_strategy="no"
    )
    trainer.optimizer = Kept(model.parameters(), lr=1e-3)
    try:
        trainer.train()
    finally:
        trainer.engine.close()
    assert len(seen) == 3
    left_out = model.left_as_they_are(loops_recorded=1)
    assert bool(left_out) == (name == "ouro")
    for step in seen:
        assert {key for key, _ in model.named_parameters() if key not in left_out} == step.keys()
        for key, gradient in step.items():
            assert gradient.isfinite().all() and gradient.any(), key
    after = model.state_dict()
    moved = {key for key in after if not torch.equal(before[key], after[key])}
    assert moved >= step.keys()
    logged = [row for row in trainer.state.log_history if "replay/logprob_gap_max" in row]
    assert max(row["replay/logprob_gap_max"] for row in logged) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_step_in_bf16_is_finite_and_its_replay_is_near_the_sampler(name, tmp_path):
    tokenizer = build_tokenizer()
    save_published(name, tmp_path / "model", torch.bfloat16, num_loops=3)
    model = load_model(str(tmp_path / "model"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    before = {key: value.clone() for key, value in model.state_dict().items()}

    trainer = make_trainer(
        tmp_path / "run",
        sums_modulo_seven,
        tokenizer,
        model,
        max_steps=1,
        report_to=[],
        save_strategy="no",
        learning_rate=1e-2,
    )
    try:
        assert trainer.engine.llm.llm_engine.model_config.dtype == torch.bfloat16
        trainer.train()
    finally:
        trainer.engine.close()
    (row,) = (row for row in trainer.state.log_history if "loss" in row)
    assert math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0
    assert row["replay/logprob_gap_mean"] < 0.05
    assert "dropped/nonfinite_updates" not in row or row["dropped/nonfinite_updates"] == 0
    left_out = model.left_as_they_are(loops_recorded=1)
    for key, parameter in model.named_parameters():
        assert parameter.dtype == torch.bfloat16 and parameter.isfinite().all()
        assert torch.equal(parameter, before[key]) == (key in left_out), key
