"""Dr. GRPO is what it says: a constant length divisor, no standard deviation, whatever shape the batch has."""

from dataclasses import replace

import pytest
import torch

from looprl.gradients import Estimator

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8] * 2
REWARDS = [1.0, 0.0, 0.5, 0.0, 1.0, 0.25, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def worst_relative_error(got, expected):
    return max(float((got[name] - value).norm() / value.norm()) for name, value in expected.items())


def advantages_of(rewards, group=8):
    grouped = torch.tensor(rewards).view(-1, group)
    return (grouped - grouped.mean(dim=1, keepdim=True)).flatten()


@pytest.fixture
def batch(setting):
    prompts, records = setting.records(LENGTHS)
    return setting.batch(records, prompts, REWARDS)


def test_gradient_does_not_depend_on_the_micro_batch_split(setting, batch):
    whole = setting.gradients(batch)
    for micro_batches in (2, 4, 16):
        assert worst_relative_error(setting.gradients(batch, micro_batches), whole) < 1e-6


def test_advantages_are_rewards_minus_the_group_mean_and_nothing_else(setting, batch):
    torch.testing.assert_close(batch["advantages"], advantages_of(REWARDS))


def test_padding_changes_nothing(setting, batch, monkeypatch):
    expected = setting.gradients(batch)
    monkeypatch.setattr(setting.trainer, "pad_to_multiple_of", 48)
    prompts, records = setting.records(LENGTHS)
    padded = setting.batch(records, prompts, REWARDS)
    assert padded["prompt_ids"].shape[1] == 48 and padded["completion_ids"].shape[1] == 48
    assert worst_relative_error(setting.gradients(padded), expected) < 1e-6


def test_every_token_has_the_coefficient_of_its_advantage_whatever_its_sequence_length(setting, batch, monkeypatch):
    leaf = batch["old_per_token_logps"].clone().requires_grad_()
    monkeypatch.setattr(setting.trainer, "score", lambda *_: (leaf, torch.zeros_like(leaf)))
    setting.trainer.current_gradient_accumulation_steps = 1
    setting.trainer.compute_loss(setting.trainer.model, batch).backward()
    per_token = -advantages_of(REWARDS) / (len(LENGTHS) * setting.trainer.max_completion_length)
    kept = torch.arange(8)[None] < torch.tensor(LENGTHS)[:, None]
    torch.testing.assert_close(leaf.grad, per_token[:, None] * kept, rtol=1e-6, atol=0)


def test_a_step_raises_the_log_prob_of_what_was_better_than_its_group(setting, batch, monkeypatch):
    # without Neumann steps the gradient is that of the replayed loop, which can be scored again
    monkeypatch.setattr(setting.trainer, "estimator", Estimator.preset("reuse", neumann_steps=0))
    gradients = setting.gradients(batch)
    model = setting.trainer.model
    start = setting.trainer.score(model, *scoring_inputs(batch))[0].detach()
    saved = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p -= 1e-2 * gradients[name]
        moved = setting.trainer.score(model, *scoring_inputs(batch))[0] - start
        for name, p in model.named_parameters():
            p.copy_(saved[name])
    gain = (moved * batch["completion_mask"] * batch["advantages"][:, None]).sum()
    expected = 1e-2 * sum(float(g.square().sum()) for g in gradients.values()) * 16 * 8
    assert float(gain) == pytest.approx(expected, rel=0.1)


def scoring_inputs(batch):
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return ids, mask, slice(None), batch["completion_ids"].shape[1]


def test_a_token_beyond_the_clip_range_has_no_gradient(setting, batch):
    clipped = dict(batch)
    better = batch["advantages"] > 0
    clipped["old_per_token_logps"] = batch["old_per_token_logps"] - better[:, None] * 0.3  # ratio 1.35 > 1.2
    only_worse = dict(batch)
    only_worse["advantages"] = batch["advantages"].clamp(max=0)
    expected = setting.gradients(only_worse)
    assert worst_relative_error(setting.gradients(clipped), expected) < 1e-4


def test_a_group_of_equal_rewards_gives_exactly_zero_gradient(setting):
    prompts, records = setting.records(LENGTHS)
    setting.trainer.meter.flush()
    batch = setting.batch(records, prompts, [0.1] * 16)
    assert torch.equal(batch["advantages"], torch.zeros(16))
    assert all(not gradient.any() for gradient in setting.gradients(batch).values())
    assert setting.trainer.meter.flush()["dropped/zero_variance_groups"] == 2


def test_one_group_of_equal_rewards_leaves_the_other_group_alone(setting):
    prompts, records = setting.records(LENGTHS)
    batch = setting.batch(records, prompts, [0.1] * 8 + REWARDS[8:])
    assert torch.equal(batch["advantages"][:8], torch.zeros(8))
    torch.testing.assert_close(batch["advantages"][8:], advantages_of(REWARDS)[8:])


def test_a_completion_that_cannot_be_judged_is_left_out_of_its_group(setting):
    prompts, records = setting.records(LENGTHS)
    rewards = [1.0, None, 0.0, None, 1.0, 0.0, 1.0, 1.0, *[0.5, None] * 4]
    setting.trainer.meter.flush()
    batch = setting.batch(records, prompts, rewards)
    assert setting.trainer.meter.flush()["dropped/unscorable"] == 6
    mean = 4 / 6
    expected = [0 if value is None else value - mean for value in rewards[:8]] + [0.0] * 8
    torch.testing.assert_close(batch["advantages"], torch.tensor(expected))


def test_an_empty_completion_is_masked_and_counted(setting):
    prompts, records = setting.records([0, *LENGTHS[1:]])
    setting.trainer.meter.flush()
    batch = setting.batch(records, prompts, REWARDS)
    assert int(batch["completion_mask"][0].sum()) == 0
    assert setting.trainer.meter.flush()["dropped/empty_completions"] == 1
    gradients = setting.gradients(batch)
    assert all(torch.isfinite(gradient).all() and gradient.any() for gradient in gradients.values())


def test_a_batch_of_only_truncated_completions_can_be_masked_and_gives_zero_gradient(setting, monkeypatch):
    prompts, records = setting.records([8] * 16)
    eos = setting.trainer.processing_class.eos_token_id
    assert all(record.completion_ids[-1] != eos for record in records)
    monkeypatch.setattr(setting.trainer, "mask_truncated_completions", True)
    setting.trainer.meter.flush()
    batch = setting.batch(records, prompts, REWARDS)
    assert int(batch["completion_mask"].sum()) == 0
    assert setting.trainer.meter.flush()["dropped/truncated_completions"] == 16
    assert all(not gradient.any() for gradient in setting.gradients(batch).values())


def test_token_ids_reach_the_trainer_unchanged_though_they_would_be_encoded_otherwise(setting):
    tokenizer = setting.trainer.processing_class
    one, two = (tokenizer.convert_tokens_to_ids(digit) for digit in "12")
    odd = (one, two)
    assert tokenizer(tokenizer.decode(odd), add_special_tokens=False)["input_ids"] != list(odd)
    prompts, records = setting.records([2] * 16)
    records = [replace(record, completion_ids=odd) for record in records]
    batch = setting.batch(records, prompts, REWARDS)
    assert batch["completion_ids"].tolist() == [list(odd)] * 16


def test_prompts_start_with_exactly_one_bos(setting, batch):
    bos = setting.trainer.processing_class.bos_token_id
    for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True):
        prompt = ids[mask.bool()].tolist()
        assert prompt[0] == bos and prompt.count(bos) == 1


def test_a_second_bos_is_refused(setting):
    prompts, records = setting.records(LENGTHS)
    with pytest.raises(ValueError, match="two BOS"):
        setting.batch(records, ["<bos>" + prompt for prompt in prompts], REWARDS)


def test_replay_reproduces_the_sampler_log_probs_inside_the_trainer(setting, batch):
    setting.trainer.meter.flush()
    setting.gradients(batch)
    measured = setting.trainer.meter.flush()
    assert measured["replay/logprob_gap_max"] < 1e-5
    assert 0 < measured["replay/residual"] < 1
    assert measured["replay/neumann_steps"] == 2


def test_log_probs_are_scored_at_the_temperature_that_was_sampled_with(setting, monkeypatch):
    monkeypatch.setattr(setting.trainer, "temperature", 0.7)
    prompts, records = setting.records(LENGTHS)
    batch = setting.batch(records, prompts, REWARDS)
    setting.trainer.meter.flush()
    setting.gradients(batch)
    assert setting.trainer.meter.flush()["replay/logprob_gap_max"] < 1e-5
    monkeypatch.undo()
    setting.gradients(batch)
    assert setting.trainer.meter.flush()["replay/logprob_gap_max"] > 1e-2


def test_residual_leaves_out_the_last_sampled_token_which_has_no_state(setting, batch):
    setting.trainer.meter.flush()
    setting.gradients(batch)
    residual = setting.trainer.meter.flush()["replay/residual"]
    model, state = setting.trainer.model, batch["states"]
    ids, mask, _, _ = scoring_inputs(batch)
    moved = []
    with torch.no_grad():
        after = model(ids, mask, initial_state=state, loop_runner=Estimator.preset("reuse", 0)).state
    for row in range(16):
        first = int((batch["prompt_mask"][row] == 0).sum())
        fed = slice(first, batch["prompt_ids"].shape[1] + LENGTHS[row] - 1)
        moved.append((after[row, fed] - state[row, fed]).norm(dim=-1) / after[row, fed].norm(dim=-1))
    assert residual == pytest.approx(float(torch.cat(moved).mean()), rel=1e-5)


def test_each_rollout_of_a_step_draws_from_a_stream_of_its_own(setting):
    rollouts, prompts = setting.trainer.vllm_generation, [[5, 6, 7]] * 4
    rollouts.sync_weights()
    drawn = [rollouts.generate(prompts, None, 8)[1] for _ in range(2)]
    assert drawn[0] != drawn[1] and rollouts.index >= 1


def test_states_of_another_policy_version_are_refused(setting):
    prompts, records = setting.records(LENGTHS)
    records[3] = replace(records[3], policy_version=7)
    with pytest.raises(ValueError, match="policy_version = 7, the trainer replays with 0"):
        setting.batch(records, prompts, REWARDS)
