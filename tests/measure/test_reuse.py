"""The evidence on reuse: what it must be where the answer is known."""

import pytest
import torch

from looprl.gradients import Estimator
from looprl.measure.decoding import decode
from looprl.measure.reuse import compare_with_full, policy_batches

GENERATOR = 0


def evidence(model, batches, num_loops, policy, most_steps):
    decoded = [decode(model, batch, num_loops, policy) for batch in batches]
    rollouts = policy_batches(batches, decoded, torch.Generator().manual_seed(GENERATOR))
    rows = compare_with_full(model, rollouts, num_loops, most_steps)
    return rollouts, {(row.estimator, row.replay_from, row.neumann_steps): row for row in rows}


def test_documents_have_random_signs_and_tokens_after_prompts_share_the_weight(tiny_model, token_batch):
    model = tiny_model()
    batches = [token_batch] * 8
    rollouts, _ = evidence(model, batches, 1, "per_loop", 0)
    weights = torch.cat([rollout.weights for rollout in rollouts])
    follows = torch.cat([batch.follows for batch in batches])
    assert (weights[~follows] == 0).all()
    torch.testing.assert_close(weights[follows].abs(), torch.full((80,), 1 / 80, dtype=weights.dtype))
    signs = weights[:, 0].sign()
    assert 4 < (signs > 0).sum() < 20
    assert ((weights.sign() == signs[:, None]) | ~follows).all()


def test_one_loop_from_the_penultimate_state_is_full_bptt_itself(tiny_model, token_batch):
    _, rows = evidence(tiny_model(), [token_batch], 1, "terminal", 0)
    for estimator in ("reuse", "recompute"):
        row = rows[estimator, "penultimate", 0]
        assert row.cosine_to_full["all"] == pytest.approx(1, abs=1e-12)
        assert row.norm_ratio == pytest.approx(1, abs=1e-12)
        assert row.logprob_gap_max < 1e-12
    assert rows["reuse", "endpoint", 0].cosine_to_full["all"] < 0.999


def test_under_per_loop_kv_reuse_and_recompute_are_one(tiny_model, token_batch):
    model = tiny_model(initializer_scale=1.5)
    _, rows = evidence(model, [token_batch], 3, "per_loop", 2)
    assert len(rows) == 12
    for start in ("penultimate", "endpoint"):
        for steps in range(3):
            reuse, recompute = rows["reuse", start, steps], rows["recompute", start, steps]
            assert reuse.cosine_to_full == pytest.approx(recompute.cosine_to_full, abs=1e-9)
            assert reuse.norm_ratio == pytest.approx(recompute.norm_ratio, abs=1e-9)
            gaps = [reuse.logprob_gap_mean, reuse.logprob_gap_max]
            assert gaps == pytest.approx([recompute.logprob_gap_mean, recompute.logprob_gap_max], abs=1e-9)
    assert rows["reuse", "penultimate", 0].logprob_gap_max < 1e-9
    assert rows["reuse", "endpoint", 0].logprob_gap_mean > 1e-3


def test_cosine_and_norm_are_those_of_backpropagation_over_all_batches(tiny_model, token_batch, other_batch):
    """Against `.grad` of one loss over both batches; K = 1 from the penultimate state."""
    model = tiny_model(initializer_scale=1.5)
    rollouts, rows = evidence(model, [token_batch, other_batch], 3, "terminal", 1)

    def gradient(estimator, states):
        model.zero_grad(set_to_none=True)
        for rollout in rollouts:
            ids, mask = rollout.input_ids, rollout.attention_mask
            state = rollout.states["penultimate"] if states else None
            output = model(ids[:, :-1], mask[:, :-1], num_loops=3, loop_runner=estimator, initial_state=state)
            logps = output.logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            (-(logps[:, -rollout.weights.shape[1] :] * rollout.weights).sum()).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    full = gradient(Estimator.preset("full"), states=False)
    ours = gradient(Estimator.preset("reuse", neumann_steps=1), states=True)
    row = rows["reuse", "penultimate", 1]
    assert row.cosine_to_full["all"] == pytest.approx(float(torch.cosine_similarity(ours, full, dim=0)), abs=1e-9)
    assert row.norm_ratio == pytest.approx(float(ours.norm() / full.norm()), abs=1e-9)
    others = [rows[key].cosine_to_full["all"] for key in rows if key != ("reuse", "penultimate", 1)]
    assert all(abs(other - row.cosine_to_full["all"]) > 1e-5 for other in others)
