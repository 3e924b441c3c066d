"""The five estimators against finite differences, against backpropagation written by hand, and each other."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache

from looprl.data.loading import load_task_dataset
from looprl.data.prompts import prompt_token_ids
from looprl.gradients import PRESETS, AdjointSolver, Estimator
from looprl.models import load_model
from looprl.models.loop import run_loops

QUICKSTART_MODEL = Path(__file__).parents[2] / "recipes" / "quickstart" / "model"
LOOPS = pytest.mark.parametrize("num_loops", [1, 2, 6])
FULL, CHECKPOINTED = Estimator.preset("full"), Estimator.preset("full_checkpointed")

ESTIMATORS = {
    "reuse": Estimator.preset("reuse"),
    "reuse endpoint": Estimator.preset("reuse", replay_from="endpoint"),
    "reuse auto": Estimator.preset("reuse", "auto", neumann_tolerance=0.05),
    "reuse least squares": Estimator.preset("reuse", adjoint_solver="least_squares"),
    "reuse auto least squares": Estimator.preset("reuse", "auto", adjoint_solver="least_squares"),
    "recompute": Estimator.preset("recompute"),
    "recompute endpoint": Estimator.preset("recompute", replay_from="endpoint"),
    "truncated": Estimator.preset("truncated", loops_recorded=2),
    "full": FULL,
    "full_checkpointed": CHECKPOINTED,
}
EVERY_ESTIMATOR = pytest.mark.parametrize("name", ESTIMATORS)


def start_of(name, model, batch, num_loops) -> Tensor | None:
    """What the estimator starts from: the trainer's own state for `reuse`, else z_0."""
    if not name.startswith("reuse"):
        return None
    return batch.state(model, num_loops - (not name.endswith("endpoint")))


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], rtol=1e-9, atol=1e-11):
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def assert_identical(ours: dict[str, Tensor], theirs: dict[str, Tensor]):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Relative distance of all gradients taken together."""
    flat = [torch.cat([gradient.flatten() for gradient in each.values()]) for each in (ours, theirs)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


# Truth


@LOOPS
def test_full_equals_finite_differences(model, batch, num_loops):
    gradients = batch.gradients(model, FULL, num_loops)
    choose, step = random.Random(0), 1e-5
    for name, parameter in model.named_parameters():
        entries = [int(gradients[name].abs().argmax()), *choose.choices(range(parameter.numel()), k=2)]
        for entry in entries:
            losses = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[entry] += sign * step
                    losses.append(batch.loss(model, num_loops=num_loops).item())
                    parameter.view(-1)[entry] -= sign * step
            slope = (losses[0] - losses[1]) / (2 * step)
            assert gradients[name].view(-1)[entry].item() == pytest.approx(slope, rel=1e-6, abs=1e-9), (name, entry)


def truncated_by_hand(model, batch, num_loops, recorded):
    """Backpropagation through the last loops only, without estimators or loop runners."""
    ids, mask = batch.input_ids[:, :-1], batch.attention_mask[:, :-1]
    context = model.model.context(ids, mask)
    injected = model.model.prelude(ids, mask, context)
    state = torch.zeros_like(injected).detach()
    for loop in range(1, num_loops + 1):
        state = model.model.core(state, injected, *context)
        if loop == num_loops - recorded:
            state = state.detach()
            injected_before, injected = injected, injected.detach().requires_grad_()
    logps = model.lm_head(model.model.coda(state, context)).log_softmax(-1)
    logps = logps.gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)
    model.zero_grad(set_to_none=True)
    (-(logps * batch.coefficients[:, 1:]).sum(-1).mean()).backward()
    if recorded < num_loops:
        injected_before.backward(injected.grad)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("num_loops", "recorded"), [(2, 1), (6, 1), (6, 2), (6, 5), (6, 6)])
def test_truncated_equals_truncated_backpropagation_by_hand(model, batch, num_loops, recorded):
    gradients = batch.gradients(model, Estimator.preset("truncated", loops_recorded=recorded), num_loops)
    assert_same(gradients, truncated_by_hand(model, batch, num_loops, recorded))
    if recorded < num_loops:
        assert distance(gradients, truncated_by_hand(model, batch, num_loops, recorded + 1)) > 1e-3


@LOOPS
@pytest.mark.parametrize("beyond", [0, 1, 5])
def test_truncated_at_all_loops_or_more_is_full(model, batch, num_loops, beyond):
    truncated = Estimator.preset("truncated", loops_recorded=num_loops + beyond)
    assert_identical(batch.gradients(model, truncated, num_loops), batch.gradients(model, FULL, num_loops))


@LOOPS
def test_full_is_what_plain_loops_give(model, batch, num_loops):
    gradients = batch.gradients(model, FULL, num_loops)
    assert_identical(gradients, batch.gradients(model, run_loops, num_loops))


@LOOPS
def test_checkpointing_changes_nothing(model, batch, num_loops):
    gradients = batch.gradients(model, CHECKPOINTED, num_loops)
    assert_identical(gradients, batch.gradients(model, FULL, num_loops))


def test_on_a_converged_model_recompute_with_many_steps_is_full(model, batch):
    full = batch.gradients(model, FULL, 100)
    for replay_from in ("penultimate", "endpoint"):
        many = Estimator.preset("recompute", neumann_steps=100, replay_from=replay_from)
        few = Estimator.preset("recompute", neumann_steps=1, replay_from=replay_from)
        assert distance(batch.gradients(model, many, 100), full) < 1e-6
        assert distance(batch.gradients(model, few, 100), full) > 1e-3


def test_on_a_converged_model_k_steps_are_truncation_at_k_plus_1(model, batch):
    for steps in (0, 1, 3):
        neumann = Estimator.preset("recompute", neumann_steps=steps)
        truncated = Estimator.preset("truncated", loops_recorded=steps + 1)
        assert distance(batch.gradients(model, neumann, 100), batch.gradients(model, truncated, 100)) < 1e-6


# The same numbers from different starts


@LOOPS
@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("replay_from", ["penultimate", "endpoint"])
def test_reuse_of_the_trainers_own_state_is_recompute(model, batch, num_loops, steps, replay_from):
    reuse = Estimator.preset("reuse", steps, replay_from)
    recompute = Estimator.preset("recompute", steps, replay_from)
    state = batch.state(model, num_loops - (replay_from == "penultimate"))
    reused = batch.gradients(model, reuse, num_loops, state)
    assert_identical(reused, batch.gradients(model, recompute, num_loops))
    assert batch.loss(model, reuse, num_loops, state) == batch.loss(model, recompute, num_loops)


@LOOPS
def test_penultimate_and_endpoint_replay_are_one_loop_apart(model, batch, num_loops):
    endpoint = Estimator.preset("recompute", replay_from="endpoint")
    penultimate = Estimator.preset("recompute", replay_from="penultimate")
    gradients = batch.gradients(model, endpoint, num_loops)
    assert_identical(gradients, batch.gradients(model, penultimate, num_loops + 1))
    assert distance(gradients, batch.gradients(model, penultimate, num_loops)) > 1e-4


@LOOPS
def test_recompute_without_neumann_steps_is_truncation_at_one_loop(model, batch, num_loops):
    recompute = Estimator.preset("recompute", neumann_steps=0)
    truncated = Estimator.preset("truncated", loops_recorded=1)
    gradients = batch.gradients(model, recompute, num_loops)
    assert_identical(gradients, batch.gradients(model, truncated, num_loops))


def test_reuse_does_not_depend_on_the_number_of_loops(model, batch):
    reuse, state = Estimator.preset("reuse"), batch.state(model, 3)
    gradients = batch.gradients(model, reuse, 4, state)
    assert_identical(gradients, batch.gradients(model, reuse, 1, state))
    assert_identical(gradients, batch.gradients(model, reuse, 60, state))


def test_reuse_at_one_loop_without_neumann_steps_is_full(model, batch):
    reuse = Estimator.preset("reuse", neumann_steps=0)
    gradients = batch.gradients(model, reuse, 1, batch.state(model, 0))
    assert_same(gradients, batch.gradients(model, FULL, 1))


@LOOPS
@EVERY_ESTIMATOR
def test_the_forward_pass_is_that_of_plain_loops(model, batch, name, num_loops):
    loops = num_loops + name.endswith("endpoint")
    loss = batch.loss(model, ESTIMATORS[name], num_loops, start_of(name, model, batch, num_loops))
    assert loss.item() == pytest.approx(batch.loss(model, num_loops=loops).item(), rel=1e-12)
    with torch.no_grad():
        assert batch.loss(model, ESTIMATORS[name], num_loops, start_of(name, model, batch, num_loops)) == loss


# Cost


@pytest.mark.parametrize(
    ("estimator", "forwards", "backwards"),
    [
        (Estimator.preset("reuse", 4), 1, 5),
        (Estimator.preset("reuse", 0), 1, 1),
        (Estimator.preset("reuse", 4, "endpoint"), 1, 5),
        (Estimator.preset("recompute", 4), 6, 5),
        (Estimator.preset("recompute", 1), 6, 2),
        (Estimator.preset("recompute", 4, "endpoint"), 7, 5),
        (Estimator.preset("truncated", loops_recorded=1), 6, 1),
        (Estimator.preset("truncated", loops_recorded=4), 6, 4),
        (FULL, 6, 6),
        (CHECKPOINTED, 12, 6),
    ],
)
def test_loops_run_and_backpropagated_are_as_announced(model, batch, estimator, forwards, backwards):
    """K Neumann steps are K passes back through the loop, and one more takes the adjoint to the weights."""
    state = batch.state(model, 5) if estimator.state_from == "rollout" else None
    seen = {"forward": 0, "recorded": 0, "backward": 0}

    def count(what):
        seen[what] += 1

    def count_backward(module, inputs, output):
        if output.requires_grad:
            count("recorded")
            output.register_hook(lambda gradient: count("backward"))

    core = model.model.core
    core.register_forward_pre_hook(lambda module, inputs: count("forward"))
    core.layers[0].mlp.register_forward_hook(count_backward)
    batch.gradients(model, estimator, 6, state)
    assert (seen["forward"], seen["backward"]) == (forwards, backwards)
    if not estimator.checkpoint_loops:
        assert seen["recorded"] == (estimator.loops_recorded or 6)


@pytest.mark.parametrize("num_loops", [1, 2, 4])
def test_auto_makes_no_more_products_than_full_has_terms(model, batch, num_loops):
    found = []
    auto = Estimator("rollout", 1, AdjointSolver("auto", tolerance=1e-9), on_solved=found.append)
    batch.gradients(model, auto, num_loops, batch.state(model, num_loops - 1))
    assert found[0].steps.tolist() == [num_loops - 1] * 3


# Every parameter, every split


@LOOPS
@EVERY_ESTIMATOR
def test_every_parameter_gets_a_finite_gradient_that_is_not_zero(model, batch, name, num_loops):
    state = start_of(name, model, batch, num_loops)
    gradients = batch.gradients(model, ESTIMATORS[name], num_loops, state)
    assert {"model.embed_tokens.weight", "model.prelude_layers.0.attention.qkv_proj.weight"} <= gradients.keys()
    for parameter, gradient in gradients.items():
        assert gradient.isfinite().all()
        if parameter.endswith("diagonal_logit") and num_loops == 1 and not name.endswith("endpoint"):
            assert not gradient.any()  # it multiplies z_0 = 0
        else:
            assert gradient.abs().max() > 1e-5, parameter


@LOOPS
@EVERY_ESTIMATOR
def test_the_gradient_of_a_batch_is_the_mean_of_its_rows_without_padding(model, batch, name, num_loops):
    state = start_of(name, model, batch, num_loops)
    whole = batch.gradients(model, ESTIMATORS[name], num_loops, state)
    parts = [
        row.gradients(model, ESTIMATORS[name], num_loops, None if state is None else cut(state))
        for row, cut in batch.rows()
    ]
    assert len(parts) == 3 and distance(parts[0], parts[1]) > 0.1
    assert_same({key: sum(part[key] for part in parts) / 3 for key in whole}, whole)


# Refusals


def test_an_unknown_preset_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="'bptt'; choose from reuse, recompute, truncated, full, full_checkpointed"):
        Estimator.preset("bptt")
    assert PRESETS == ("reuse", "recompute", "truncated", "full", "full_checkpointed", "rltt")


def test_an_unknown_state_to_replay_from_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="'middle'; choose from penultimate, endpoint"):
        Estimator.preset("reuse", replay_from="middle")


def test_an_unknown_origin_of_states_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="'rolout'; choose from rollout, trainer"):
        Estimator("rolout", 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(neumann_steps="some"), "must be a number or 'auto', got 'some'"),
        (dict(adjoint_solver="gmres"), "'gmres'; choose from neumann, least_squares"),
        (dict(neumann_tolerance=0.0), r"neumann_tolerance must lie in \(0, 1\), got 0.0"),
        (dict(neumann_tolerance=1.0), r"neumann_tolerance must lie in \(0, 1\), got 1.0"),
    ],
)
def test_a_solver_that_means_nothing_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Estimator.preset("full", **settings)


@pytest.mark.parametrize("name", ["reuse", "recompute"])
def test_negative_neumann_steps_are_refused(name):
    with pytest.raises(ValueError, match="neumann_steps must be 0 or more, got -1"):
        Estimator.preset(name, neumann_steps=-1)


@pytest.mark.parametrize("recorded", [0, -2])
def test_fewer_than_one_recorded_loop_is_refused(recorded):
    with pytest.raises(ValueError, match=f"loops_recorded must be 1 or more, got {recorded}"):
        Estimator.preset("truncated", loops_recorded=recorded)


def test_truncated_needs_to_be_told_how_many_loops():
    with pytest.raises(ValueError, match="'truncated' needs loops_recorded"):
        Estimator.preset("truncated")


@pytest.mark.parametrize("recorded", [2, None])
def test_a_neumann_series_or_a_recorded_state_needs_exactly_one_recorded_loop(recorded):
    for settings in (dict(state_from="trainer", solver=AdjointSolver(1)), dict(state_from="rollout")):
        with pytest.raises(ValueError, match="need loops_recorded = 1"):
            Estimator(loops_recorded=recorded, **settings)
    with pytest.raises(ValueError, match="'endpoint' needs loops_recorded = 1"):
        Estimator("trainer", recorded, replay_from="endpoint")


@pytest.mark.parametrize("name", ["truncated", "full", "full_checkpointed"])
def test_presets_leave_aside_the_settings_that_do_not_concern_them(name):
    preset = Estimator.preset(name, neumann_steps=4, replay_from="endpoint", loops_recorded=3)
    assert preset.neumann_steps == 0 and preset.replay_from == "penultimate"
    assert preset.loops_recorded == (3 if name == "truncated" else None)


# The trained model


@torch.no_grad()
def greedy_rollout(model, prompts, num_loops, new_tokens, eos):
    """Decode through the cache, keeping every fed token's state z_{R-1}, as a rollout engine does.

    Returns ids and mask [B, P + C], states [B, P + C - 1, d]. Prompts are padded on the left.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    penultimate, cache, chunk = [], DynamicCache(), ids

    def keep_penultimate(core, state, injected, context, num_loops):
        penultimate.append(run_loops(core, state, injected, context, num_loops - 1))
        return core(penultimate[-1], injected, *context)

    for _ in range(new_tokens):
        output = model(
            chunk, mask, num_loops=num_loops, loop_runner=keep_penultimate, past_key_values=cache, use_cache=True
        )
        ended = (ids[:, width:] == eos).any(1)
        chunk = output.logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, chunk], 1)
        mask = torch.cat([mask, (~ended).long()[:, None]], 1)
    return ids, mask, torch.cat(penultimate, 1)


def test_on_the_trained_model_reuse_points_where_full_does(policy_batch):
    model = load_model(str(QUICKSTART_MODEL), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(QUICKSTART_MODEL)
    prompts = prompt_token_ids(load_task_dataset("arithmetic", "test", size=16)["prompt"][:], tokenizer)
    width = max(map(len, prompts))
    ids, mask, states = greedy_rollout(model, prompts, 6, 16, tokenizer.eos_token_id)
    signs = torch.randint(0, 2, (16, 1), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    coefficients = signs * mask
    coefficients[:, :width] = 0
    assert coefficients.bool().sum() > 16 * 5 and 4 <= (signs > 0).sum() <= 12
    batch = policy_batch(ids, mask, coefficients)

    full = batch.gradients(model, FULL, 6)
    cosines = {}
    for name, estimator, state in (
        ("reuse", Estimator.preset("reuse", 4), states),
        ("reuse, trainer's own state", Estimator.preset("reuse", 4), batch.state(model, 5)),
        ("one loop", Estimator.preset("reuse", 0), states),
        ("the state of the token before", Estimator.preset("reuse", 4), states.roll(1, dims=1)),
    ):
        gradients = batch.gradients(model, estimator, 6, state)
        flat = [torch.cat([gradient.flatten() for gradient in each.values()]).double() for each in (gradients, full)]
        cosines[name] = torch.cosine_similarity(*flat, dim=0).item()
    assert cosines["reuse"] >= 0.999 and cosines["reuse, trainer's own state"] >= 0.999, cosines
    assert cosines["one loop"] < cosines["reuse"] and cosines["the state of the token before"] < 0.9, cosines
