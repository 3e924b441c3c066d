"""Replay from the endpoint is one loop off: corrected, with the truncated share logged, for a pass more."""

import pytest
import torch

from tests.training.conftest import GROUP, Setting, make_model, make_trainer

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8] * 2
REWARDS = [1.0, 0.0] * GROUP


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    from looprl.data.tokenizer import build_tokenizer

    rewards = []
    tokenizer = build_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token  # padding and the end of a text share an id here
    model = make_model(tokenizer, injection="linear", norm_placement="pre")
    trainer = make_trainer(
        tmp_path_factory.mktemp("run"),
        lambda prompts, **kwargs: list(rewards),
        tokenizer,
        model,
        replay_from="endpoint",
        vllm_importance_sampling_clip_max=1.05,
    )
    yield Setting(trainer, rewards)
    trainer.engine.close()


def test_a_second_scoring_pass_is_run_and_its_ratio_is_truncated(endpoint, monkeypatch):
    trainer = endpoint.trainer
    passes = []
    monkeypatch.setattr(trainer, "score", lambda *args: (passes.append(1), type(trainer).score(trainer, *args))[1])
    prompts, records = endpoint.records(LENGTHS)
    trainer.meter.flush()
    batch = endpoint.batch(records, prompts, REWARDS)
    assert len(passes) == 1
    endpoint.gradients(batch)
    assert len(passes) == 2
    measured = trainer.meter.flush()
    kept = batch["completion_mask"].bool()
    ratio = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).exp()
    torch.testing.assert_close(batch["importance_sampling_ratio"][kept], ratio[kept].clamp(max=1.05))
    assert measured["replay/truncated_share"] == pytest.approx(float((ratio[kept] >= 1.05).float().mean()))
    assert 0 < measured["replay/truncated_share"] < 1
    assert measured["replay/logprob_gap_max"] > 1e-3


def test_the_end_token_is_trained_on_though_padding_has_its_id(endpoint):
    from dataclasses import replace

    eos = endpoint.trainer.processing_class.eos_token_id
    assert endpoint.trainer.processing_class.pad_token_id == eos
    prompts, records = endpoint.records(LENGTHS)
    records = [replace(record, completion_ids=(*record.completion_ids[:-1], eos)) for record in records]
    batch = endpoint.batch(records, prompts, REWARDS)
    assert batch["completion_mask"].sum(dim=1).tolist() == LENGTHS
    assert endpoint.trainer._metrics["train"]["completions/clipped_ratio"][-1] == 0


def test_gradient_does_not_depend_on_the_micro_batch_split(endpoint):
    prompts, records = endpoint.records(LENGTHS)
    batch = endpoint.batch(records, prompts, REWARDS)
    whole, parts = endpoint.gradients(batch), endpoint.gradients(batch, micro_batches=8)
    for name, gradient in whole.items():
        assert float((parts[name] - gradient).norm() / gradient.norm()) < 1e-6
