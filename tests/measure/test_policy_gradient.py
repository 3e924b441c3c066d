"""Policy gradients apart from the trainer, how they are compared, and `auto` on cores that do not contract."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looprl.gradients import Estimator
from looprl.measure.policy_gradient import by_part, cosines, norm, policy_gradient
from looprl.models import load_model

FULL = Estimator.preset("full")
QUICKSTART_MODEL = Path(__file__).parents[2] / "recipes" / "quickstart" / "model"


def test_the_gradient_is_that_of_backpropagating_the_weighted_log_probs(looplm, rollouts):
    model = looplm(hidden_size=32)
    batch = replace(rollouts(model, 3), temperature=0.7)
    computed = policy_gradient(model, batch, FULL, 3)
    assert all(parameter.grad is None for parameter in model.parameters())
    length = batch.weights.shape[1]
    logits = model(batch.input_ids[:, :-1], num_loops=3).logits[:, -length:] / 0.7
    logps = logits.log_softmax(-1).gather(-1, batch.input_ids[:, -length:, None]).squeeze(-1)
    torch.testing.assert_close(computed.logps, logps.detach())
    (-(batch.weights * logps).sum()).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(computed.gradients[name], parameter.grad, rtol=1e-4, atol=1e-7)


def test_a_frozen_parameter_has_no_gradient_and_no_part(looplm, rollouts):
    model = looplm(hidden_size=32, tie_word_embeddings=False)
    model.lm_head.weight.requires_grad_(False)
    computed = policy_gradient(model, rollouts(model, 2), FULL, 2)
    assert "lm_head.weight" not in computed.gradients and "head" not in by_part(model)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("injection", ["orthogonal", "add"])
def test_every_parameter_belongs_to_one_part(looplm, tied, injection):
    model = looplm(hidden_size=32, tie_word_embeddings=tied, injection=injection)
    parts = by_part(model)
    everything = parts.pop("all")
    assert sorted(everything) == sorted(name for name, _ in model.named_parameters())
    assert sorted(name for names in parts.values() for name in names) == sorted(everything)
    assert ("injection" in parts) == (injection == "orthogonal")
    embedding = next(part for part, names in parts.items() if "model.embed_tokens.weight" in names)
    assert embedding == ("head" if tied else "prelude")
    assert all(name.startswith("model.core.layers") for name in parts["core"])


def test_cosines_and_norms_are_those_of_the_flattened_gradients():
    ours = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]]), "c": torch.zeros(2)}
    theirs = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[-2.0]]), "c": torch.ones(2)}
    found = cosines(ours, theirs, {"all": ["a", "b", "c"], "first": ["a"], "none": ["c"]})
    assert found["all"] == pytest.approx((3 - 8) / (5 * 8**0.5))
    assert found["first"] == pytest.approx(0.5**0.5) and found["none"] is None
    assert norm(ours) == pytest.approx(5)


def test_states_that_the_rollouts_do_not_hold_cannot_be_replayed(looplm, rollouts):
    model = looplm(hidden_size=32)
    batch = replace(rollouts(model, 2), states={})
    with pytest.raises(ValueError, match="hold no endpoint states"):
        policy_gradient(model, batch, Estimator.preset("reuse", replay_from="endpoint"), 2)


def scaled_quickstart(scale):
    model = load_model(str(QUICKSTART_MODEL), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.model.core.parameters():
            if parameter.ndim == 2:
                parameter *= scale
    return model


DIVERGENT = {
    "trained x 1.6": (lambda looplm: scaled_quickstart(1.6), 6),
    "trained x 2, deep": (lambda looplm: scaled_quickstart(2.0), 12),
    "orthogonal": (lambda looplm: looplm(initializer_scale=1.5), 6),
    "linear": (lambda looplm: looplm(initializer_scale=1.6, injection="linear", norm_placement="pre"), 6),
    "add, deep": (lambda looplm: looplm(initializer_scale=1.2, injection="add", norm_placement="pre"), 12),
    "add, sandwich": (lambda looplm: looplm(initializer_scale=1.5, injection="add"), 6),
}


def spectral_radius(model, batch, num_loops):
    """Largest growth per product over the sequences, by 60 products at the last state."""
    ids = batch.input_ids[:, :-1]
    context = model.model.context(ids, None)
    injected = model.model.prelude(ids, None, context).detach()
    start = batch.states["penultimate"].requires_grad_()
    output = model.model.core(start, injected, *context)
    vector = torch.randn_like(start)
    logs = []
    for _ in range(60):
        vector = torch.autograd.grad(output, start, vector, retain_graph=True)[0]
        norms = vector.flatten(1).norm(dim=1)
        logs.append(norms.log())
        vector = vector / norms[:, None, None]
    start.requires_grad_(False)
    return torch.stack(logs[30:]).mean(0).exp().max().item()


@pytest.mark.parametrize("name", DIVERGENT)
def test_on_a_divergent_core_auto_is_about_as_good_as_the_best_fixed_k(looplm, rollouts, name):
    make, num_loops = DIVERGENT[name]
    model = make(looplm)
    batch = rollouts(model, num_loops)
    assert spectral_radius(model, batch, num_loops) > 1
    parts = by_part(model)
    full = policy_gradient(model, batch, FULL, num_loops).gradients
    fixed = [
        cosines(policy_gradient(model, batch, Estimator.preset("reuse", steps), num_loops).gradients, full, parts)[
            "all"
        ]
        for steps in range(9)
    ]
    auto = policy_gradient(model, batch, Estimator.preset("reuse", "auto"), num_loops)
    assert auto.solution.grew.any()
    assert cosines(auto.gradients, full, parts)["all"] >= max(fixed) - 0.02, fixed
    assert norm(auto.gradients) <= 2 * norm(full)
