"""The published families reproduce their reference implementations: logits, states and gradients."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import DynamicCache

from looprl.gradients import Estimator
from looprl.models import load_model
from looprl.models.exit_gate import exit_distribution
from looprl.models.loop import every_state

DATA = Path(__file__).parents[1] / "data/conformance"
FROM_STATE = ["huginn", "retrofit", "parcae"]  # expectations from a zero and from a given initial state
NEAR = dict(rtol=0, atol=1e-4)


def load(family):
    return load_model(str(DATA / family / "ckpt")), load_file(DATA / family / "expected.safetensors")


@pytest.fixture(params=FROM_STATE)
def family(request):
    return load(request.param)


def named_gradients(model):
    """Gradients under the published names."""
    return {model.published_name(n): p.grad for n, p in model.named_parameters() if p.grad is not None}


def next_token_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def assert_gradients(model, expected, prefix):
    """Compare with every expected gradient of that prefix."""
    gradients = named_gradients(model)
    names = [key.removeprefix(prefix) for key in expected if key.startswith(prefix)]
    assert len(names) >= 9
    for name in names:
        wanted = expected[prefix + name]
        tolerance = 1e-4 * max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(gradients[name], wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("num_loops", [1, 2, 4, 8])
@pytest.mark.parametrize("start", ["zero", "rand"])
@torch.no_grad()
def test_logits_and_states_are_the_reference_s(family, start, num_loops):
    model, expected = family
    given = None if start == "zero" else expected["s0.rand"]
    output = model(expected["input_ids"], num_loops=num_loops, initial_state=given)
    torch.testing.assert_close(output.logits, expected[f"logits.{start}.R{num_loops}"], **NEAR)
    torch.testing.assert_close(output.state, expected[f"state.{start}.R{num_loops}"], **NEAR)


@torch.no_grad()
def test_the_injected_input_is_the_reference_s(family):
    model, expected = family
    torch.testing.assert_close(model.model.prelude(expected["input_ids"]), expected["prelude_out"], **NEAR)


GRADIENTS = [("huginn", "R1_full"), *((name, case) for name in FROM_STATE for case in ("R4_full", "R4_trunc2"))]


@pytest.mark.parametrize(("name", "case"), GRADIENTS)
def test_gradients_are_the_reference_s(name, case):
    model, expected = load(name)
    estimator = Estimator.preset("truncated", loops_recorded=2) if "trunc" in case else Estimator.preset("full")
    ids = expected["input_ids"]
    logits = model(ids, num_loops=int(case[1]), initial_state=expected["s0.rand"], loop_runner=estimator).logits
    loss = next_token_loss(logits, ids)
    torch.testing.assert_close(loss, expected[f"loss.rand.{case}"], **NEAR)
    loss.backward()
    assert_gradients(model, expected, f"grad.rand.{case}.")


@torch.no_grad()
def test_cached_decoding_with_per_loop_kv_is_the_reference_s(family):
    model, expected = family
    model.config.kv_policy = "per_loop"
    decoded = decode(model, expected["input_ids"][:1], num_loops=4)
    torch.testing.assert_close(decoded, expected["decode_logits.zero.R4.prompt6"], **NEAR)


# Ouro


@pytest.fixture(scope="module")
def ouro():
    return load("ouro")


@pytest.mark.parametrize("num_loops", [1, 2, 4, 6])
@torch.no_grad()
def test_ouro_s_logits_states_and_gate_are_the_reference_s(ouro, num_loops):
    model, expected = ouro
    before_norm = []
    model.model.core.norm.register_forward_pre_hook(lambda _, inputs: before_norm.append(inputs[0]))
    output = model(expected["input_ids"], num_loops=num_loops)
    torch.testing.assert_close(output.logits, expected[f"logits.R{num_loops}"], **NEAR)
    torch.testing.assert_close(output.state, expected[f"state.R{num_loops}"], **NEAR)
    torch.testing.assert_close(before_norm[-1], expected[f"state_prenorm.R{num_loops}"], **NEAR)
    every = model(expected["input_ids"], num_loops=num_loops, loop_runner=every_state)
    torch.testing.assert_close(every.gate_logits, expected[f"gate_logits.R{num_loops}"], **NEAR)
    assert torch.equal(every.loop_logits[-1], output.logits)
    if num_loops == 4:
        torch.testing.assert_close(every.loop_logits[1], expected["logits.R2"], **NEAR)


@torch.no_grad()
def test_ouro_s_exit_distribution_is_the_reference_s(ouro):
    model, expected = ouro
    every = model(expected["input_ids"], num_loops=4, loop_runner=every_state)
    probabilities = exit_distribution(every.gate_logits)
    torch.testing.assert_close(probabilities, expected["exit_pdf.R4"], **NEAR)
    mixed = torch.einsum("btr,rbtv->btv", probabilities, every.loop_logits)
    torch.testing.assert_close(mixed, expected["logits_weighted.R4"], **NEAR)
    for threshold in ("0.5", "0.9"):
        stops = (probabilities.cumsum(-1) >= float(threshold)).long().argmax(-1)
        assert torch.equal(stops, expected[f"exit_step_thresh{threshold}.R4"])
        chosen = every.loop_logits.gather(0, stops[None, ..., None].expand(1, -1, -1, every.loop_logits.shape[-1]))[0]
        torch.testing.assert_close(chosen, expected[f"logits_thresh{threshold}.R4"], **NEAR)


@pytest.mark.parametrize("num_loops", [1, 4])
def test_ouro_s_gradients_are_the_reference_s(num_loops):
    model, expected = load("ouro")
    ids = expected["input_ids"]
    loss = next_token_loss(model(ids, num_loops=num_loops).logits, ids)
    torch.testing.assert_close(loss, expected[f"loss.R{num_loops}"], **NEAR)
    loss.backward()
    assert_gradients(model, expected, f"grad.R{num_loops}.")


def test_ouro_s_gradients_through_the_gate_are_the_reference_s():
    model, expected = load("ouro")
    ids = expected["input_ids"]
    every = model(ids, num_loops=4, loop_runner=every_state)
    loss = next_token_loss(torch.einsum("btr,rbtv->btv", exit_distribution(every.gate_logits), every.loop_logits), ids)
    torch.testing.assert_close(loss, expected["loss_labels_weighted.R4"], **NEAR)
    loss.backward()
    assert_gradients(model, expected, "grad_labels_weighted.R4.")


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_ouro_s_padded_rows_are_the_reference_s(ouro, side):
    model, expected = ouro
    mask = expected[f"attention_mask.{side}pad"]
    logits = model(expected[f"input_ids.{side}pad"], mask, num_loops=4).logits
    torch.testing.assert_close(logits[mask.bool()], expected[f"logits.{side}pad.R4"][mask.bool()], **NEAR)


@torch.no_grad()
def test_ouro_decodes_with_per_loop_kv_unless_told_otherwise(ouro):
    model, expected = ouro
    decoded = decode(model, expected["input_ids"][:1], num_loops=4)
    torch.testing.assert_close(decoded, expected["decode_logits.R4.prompt6"], **NEAR)


def decode(model, ids, num_loops):
    """Logits [1, T, V] of a prompt of 6 tokens, then one token at a time."""
    cache = DynamicCache()
    pieces = [ids[:, :6], *ids[:, 6:].split(1, dim=1)]
    return torch.cat([model(p, num_loops=num_loops, past_key_values=cache, use_cache=True).logits for p in pieces], 1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [*FROM_STATE, "ouro"])
@torch.no_grad()
def test_a_padded_row_equals_the_row_alone(name, side):
    model, expected = load(name)
    whole, part = expected["input_ids"][0], expected["input_ids"][1, :7]
    real = slice(4, 11) if side == "left" else slice(0, 7)
    ids, mask = torch.full((2, 11), 3), torch.ones(2, 11, dtype=torch.long)
    ids[0], ids[1, real] = whole, part
    mask[1] = 0
    mask[1, real] = 1
    batched = model(ids, mask, num_loops=4)
    for row, tokens, places in ((0, whole, slice(None)), (1, part, real)):
        alone = model(tokens[None], num_loops=4)
        torch.testing.assert_close(batched.logits[row, places], alone.logits[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(batched.state[row, places], alone.state[0], rtol=0, atol=1e-5)
