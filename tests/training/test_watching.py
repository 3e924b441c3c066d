"""What a run logs about its rollouts, against an independent count; and that a tracker is told of it."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from looprl.data.tokenizer import build_tokenizer
from looprl.rollout.token_bytes import kv_bytes_per_token
from tests.published import published_with_tokenizer
from tests.training.conftest import GROUP, make_trainer, sums_modulo_seven


def test_rates_and_bytes_are_those_of_the_tokens_that_the_reward_saw(tmp_path):
    seen = []

    def reward(completion_ids, **kwargs):
        seen.append(completion_ids)
        return sums_modulo_seven(completion_ids)

    model = published_with_tokenizer("ouro", num_loops=3)
    trainer = make_trainer(tmp_path, reward, build_tokenizer(), model, max_steps=2, report_to=[], save_strategy="no")
    padded, before_loss = [], trainer.before_loss

    def look(batch):
        padded.append(batch["states"].shape)
        before_loss(batch)

    trainer.before_loss = look
    try:
        trainer.train()
    finally:
        trainer.engine.close()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == len(seen) == 2
    for row, completions, shape in zip(rows, seen, padded, strict=True):
        tokens = sum(map(len, completions))
        assert row["rollout/tokens_per_second"] == pytest.approx(tokens / row["time/rollout"], rel=1e-6)
        assert row["rollout/state_bytes_per_token"] == 64 * 4
        # three layers in each of three loops; keys and values of two heads of 32
        assert row["rollout/kv_bytes_per_token"] == 3 * 3 * 2 * 2 * 32 * 4
        assert row["rollout/kv_bytes_per_token"] == kv_bytes_per_token(model.config, 3, "per_loop", model.dtype)
        assert shape[0] == 2 * GROUP and shape[2] == 64
        assert row["memory/states"] == shape[0] * shape[1] * shape[2] * 4
        whole = sum(parameter.nbytes for parameter in model.parameters())
        assert row["memory/parameters"] == whole


def test_every_metric_of_a_step_reaches_tensorboard(tmp_path):
    trainer = make_trainer(tmp_path, sums_modulo_seven, max_steps=2, report_to=["tensorboard"], save_strategy="no")
    try:
        trainer.train()
    finally:
        trainer.engine.close()
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file.parent)).Reload()
    rows = {row["step"]: row for row in trainer.state.log_history if "loss" in row}
    assert sorted(rows) == [1, 2]
    for step, row in rows.items():
        for key in ("reward", "replay/logprob_gap_max", "rollout/tokens_per_second", "time/rollout", "memory/states"):
            written = {event.step: event.value for event in events.Scalars(f"train/{key}")}
            assert written[step] == pytest.approx(row[key], rel=1e-5), key
