"""Drawn initial states: the published distribution, and a function of a seed and the token's position alone."""

import pytest
import torch

from looprl.errors import UserError
from looprl.gradients import Estimator
from looprl.models.initial_state import CUT, check_drawable, draw_, drawn_initial_state, drawn_states, is_drawable
from tests.models.test_conformance import FROM_STATE, load
from tests.published import random_published

SEED = 2**62 + 5


@pytest.mark.parametrize("name", FROM_STATE)
def test_the_published_draw_gives_the_reference_s_numbers(name):
    model, expected = load(name)
    config, wanted = model.config, expected["s0.seed1234_torch213"]
    with torch.random.fork_rng():
        torch.manual_seed(1234)
        states = torch.randn(wanted.shape)  # the published code overwrites what it has drawn first
        draw_(states, config.initial_state_std, config.embedding_scale)
    assert wanted.std() > 0
    torch.testing.assert_close(states, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["huginn", "llama", "parcae"])
def test_states_have_the_published_spread(name):
    config = random_published(name).config
    states = drawn_states(config, SEED, 3000) / config.embedding_scale
    std = config.initial_state_std
    assert CUT * std * 0.95 < states.abs().max() <= CUT * std
    assert states.std() == pytest.approx(0.9866 * std, rel=0.01)  # of a normal distribution that ends at three
    assert abs(states.mean()) < 0.01 * std
    for later in (1, 2):
        assert abs((states[later:] * states[:-later]).mean()) < 0.01 * std**2


def test_huginn_s_states_are_scaled_as_its_embeddings():
    states = drawn_states(random_published("huginn").config, SEED, 3000)
    assert states.std() == pytest.approx(0.632 * 0.987, rel=0.01)


def test_states_depend_on_the_seed_and_on_the_position_alone():
    config = random_published("huginn").config
    long = drawn_states(config, SEED, 200).clone()
    for length in (1, 2, 7, 64, 199):
        assert torch.equal(drawn_states(config, SEED, length), long[:length])
    other = drawn_states(config, SEED + 1, 200)
    assert (other - long).abs().amax(dim=1).min() > 0.1
    assert long.unique(dim=0).shape == long.shape
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    assert torch.equal(drawn_states(config, SEED, 201)[:200], long)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_padded_row_starts_as_the_row_alone():
    config = random_published("huginn").config
    table = drawn_states(config, SEED, 7)
    ids = torch.arange(14).view(2, 7)
    left = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
    assert torch.equal(drawn_initial_state(config, SEED, ids, left)[0, 3:], table[:4])
    assert torch.equal(drawn_initial_state(config, SEED, ids, left)[1], table)
    assert torch.equal(drawn_initial_state(config, SEED, ids, left.flip(1))[0, :4], table[:4])
    assert torch.equal(drawn_initial_state(config, SEED, ids), table.expand(2, 7, -1))
    assert drawn_initial_state(config, None, ids, left) is None


@pytest.mark.parametrize("preset", ["full", "full_checkpointed", "truncated", "recompute"])
def test_every_estimator_loops_from_the_drawn_state(preset):
    model = random_published("huginn")
    estimator = Estimator.preset(preset, neumann_steps=0, loops_recorded=2)
    ids = torch.randint(97, (2, 9), generator=torch.Generator().manual_seed(0))
    start = drawn_initial_state(model.config, SEED, ids)
    looped = model(ids, initial_state=start, loop_runner=estimator)
    with torch.no_grad():
        expected = model(ids, initial_state=start.clone())
        from_zero = model(ids)
    torch.testing.assert_close(looped.logits, expected.logits, rtol=0, atol=1e-5)
    assert (looped.logits - from_zero.logits).abs().max() > 0.05
    looped.logits.sum().backward()


def test_states_that_vllm_drew_first_can_enter_autograd():
    model = random_published("parcae")
    ids = torch.arange(5)[None]
    with torch.inference_mode():  # as vLLM's workers
        drawn_states(model.config, 77, 5)
    model(ids, initial_state=drawn_initial_state(model.config, 77, ids)).logits.sum().backward()
    model(ids, initial_state=drawn_states(model.config, 77, 5)[None]).logits.sum().backward()
    gradients = [parameter.grad for parameter in model.model.core.parameters()]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("ouro", {}, "ouro publishes no distribution"),
        ("parcae", dict(state_init="normal"), r"parcae .*state_init is 'normal'.*: use initial_state: zero"),
        ("llama", dict(init_values=dict(std=0, embedding=0.3, out_proj=0.1)), "huginn_raven publishes no distribution"),
    ],
)
def test_a_model_without_a_published_distribution_is_refused(name, changes, words):
    config = random_published(name, **changes).config
    with pytest.raises(UserError, match=words):
        check_drawable(config)
    with pytest.raises(UserError, match=words):
        drawn_states(config, SEED, 3)


def test_a_configuration_that_names_no_deviation_has_no_distribution():
    config = random_published("llama").config
    assert is_drawable(config)
    config.init_values = {"embed_scale": 1.0}
    assert not is_drawable(config)
