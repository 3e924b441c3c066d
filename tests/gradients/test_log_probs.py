"""RLTT: the weighted log-probs of every loop, against separate runs at every depth and against finite differences."""

import pytest
import torch

from looprl.gradients import Estimator, token_log_probs
from looprl.gradients.log_probs import LOOP_WEIGHTS, weights_of_loops
from looprl.models.contract import LoopedCausalLMOutput
from looprl.models.loop import every_state
from tests.published import MODELS, random_published

R, COMPLETION, TEMPERATURE = 3, 3, 0.7
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [0, 0, 2, 6, 5, 3]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
COEFFICIENTS = torch.tensor([[1.5, 1, 0.5], [-1, -0.5, 0]], dtype=torch.float64)
EVERY_WEIGHTS = pytest.mark.parametrize("weights", LOOP_WEIGHTS)


@pytest.fixture
def ouro():
    return random_published("ouro", num_hidden_layers=2).double()


def run(model, estimator, ids=IDS, mask=MASK, num_loops=R):
    output = model(ids[:, :-1], mask[:, :-1], num_loops=num_loops, loop_runner=estimator, logits_to_keep=COMPLETION)
    return token_log_probs(output, ids[:, -COMPLETION:], TEMPERATURE, estimator.loop_weights)


def loss(model, estimator, **inputs):
    return -(COEFFICIENTS * run(model, estimator, **inputs).objective).sum()


def gradients(model, estimator, **inputs):
    model.zero_grad(set_to_none=True)
    loss(model, estimator, **inputs).backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def loss_by_hand(model, weights, num_loops=R):
    """The same from a run at each depth, token by token: nothing of how the estimator reads out every loop."""
    total = 0.0
    runs = [model(IDS[:, :-1], MASK[:, :-1], num_loops=loops) for loops in range(1, num_loops + 1)]
    for row in range(2):
        for place in range(COMPLETION):
            position, token = IDS.shape[1] - COMPLETION - 1 + place, IDS[row, place - COMPLETION]
            logps = [(output.logits[row, position] / TEMPERATURE).log_softmax(-1)[token] for output in runs]
            if weights == "uniform":
                shares = [1 / num_loops] * num_loops
            elif weights == "progressive":
                shares = [2 * loop / (num_loops * (num_loops + 1)) for loop in range(1, num_loops + 1)]
            else:
                shares, left = [], 1.0
                for output in runs[:-1]:
                    stop = torch.sigmoid(model.model.early_exit_gate(output.state[row, position]))[0]
                    shares.append(stop * left)
                    left = left * (1 - stop)
                shares.append(left)
            total = total - COEFFICIENTS[row, place] * sum(w * logp for w, logp in zip(shares, logps, strict=True))
    return total


@EVERY_WEIGHTS
def test_the_loss_weights_the_log_probs_of_a_run_at_every_depth(ouro, weights):
    ours = loss(ouro, Estimator.preset("rltt", loop_weights=weights))
    torch.testing.assert_close(ours, loss_by_hand(ouro, weights), rtol=1e-10, atol=0)


@EVERY_WEIGHTS
def test_the_gradient_is_that_of_finite_differences(ouro, weights):
    found = gradients(ouro, Estimator.preset("rltt", loop_weights=weights))
    step = 1e-5
    for name, parameter in ouro.named_parameters():
        entry = int(found[name].abs().argmax())
        slopes = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.view(-1)[entry] += sign * step
                slopes.append(float(loss_by_hand(ouro, weights)))
                parameter.view(-1)[entry] -= sign * step
        slope = (slopes[0] - slopes[1]) / (2 * step)
        assert found[name].view(-1)[entry].item() == pytest.approx(slope, rel=1e-5, abs=1e-9), name
        assert (slope == 0) == (name.startswith("model.early_exit_gate.") and weights != "exit"), name


@pytest.mark.parametrize(("bias", "loops"), [(-1e6, R), (1e6, 1)])
def test_weights_that_are_all_on_one_loop_are_full_bptt_of_that_many_loops(ouro, bias, loops):
    with torch.no_grad():
        ouro.model.early_exit_gate.bias.fill_(bias)
    ours = gradients(ouro, Estimator.preset("rltt", loop_weights="exit"))
    theirs = gradients(ouro, Estimator.preset("full"), num_loops=loops)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@EVERY_WEIGHTS
def test_at_one_loop_it_is_full_bptt(ouro, weights):
    ours = gradients(ouro, Estimator.preset("rltt", loop_weights=weights), num_loops=1)
    theirs = gradients(ouro, Estimator.preset("full"), num_loops=1)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@EVERY_WEIGHTS
def test_the_sampled_log_probs_are_those_of_the_last_loop(ouro, weights):
    ours, full = (
        run(ouro, each) for each in (Estimator.preset("rltt", loop_weights=weights), Estimator.preset("full"))
    )
    assert torch.equal(ours.sampled, full.sampled) and torch.equal(ours.policy, full.policy)
    assert full.objective is full.sampled
    assert (ours.objective - full.objective).abs().min() > 1e-3


@EVERY_WEIGHTS
def test_checkpointed_loops_change_nothing(ouro, weights):
    plain, checkpointed = (
        Estimator("trainer", None, checkpoint_loops=on, loop_weights=weights) for on in (False, True)
    )
    torch.testing.assert_close(gradients(ouro, plain), gradients(ouro, checkpointed), rtol=1e-12, atol=1e-14)


@EVERY_WEIGHTS
def test_padding_changes_nothing(ouro, weights):
    rltt = Estimator.preset("rltt", loop_weights=weights)
    padded = run(ouro, rltt).objective[1]
    alone = run(ouro, rltt, ids=IDS[1:, 2:], mask=MASK[1:, 2:]).objective[0]
    torch.testing.assert_close(padded, alone, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_family_reads_out_every_loop_as_a_run_of_that_many_loops_does(name):
    model = random_published(name)
    output = model(IDS, MASK, num_loops=R, loop_runner=every_state, logits_to_keep=2)
    assert torch.equal(output.logits, output.loop_logits[-1])
    assert (output.gate_logits is None) == bool(model.FAMILY.no_exit_gate) == (name != "ouro")
    for loops in range(1, R + 1):
        alone = model(IDS, MASK, num_loops=loops, logits_to_keep=2)
        torch.testing.assert_close(output.loop_logits[loops - 1], alone.logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(output.state, alone.state)
    assert not torch.allclose(output.loop_logits[0], output.loop_logits[1], atol=1e-2)


def test_the_weights_are_the_published_ones():
    torch.testing.assert_close(weights_of_loops("uniform", 4), torch.tensor([0.25] * 4).double())
    torch.testing.assert_close(weights_of_loops("progressive", 4), torch.tensor([1, 2, 3, 4]).double() / 10)
    gate = torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 5.0]])
    by_exit = weights_of_loops("exit", 3, gate)
    torch.testing.assert_close(by_exit[0], torch.tensor([0.5, 0.25, 0.25]))
    torch.testing.assert_close(by_exit.sum(-1), torch.ones(2))
    with pytest.raises(ValueError, match="needs a model with an exit gate"):
        weights_of_loops("exit", 3)


def test_tokens_that_cannot_be_drawn_add_nothing_to_the_entropy_nor_to_its_gradient():
    logits = torch.tensor([[[0.3, -1.2, 0.8]]], requires_grad=True)
    padded = torch.cat([logits, torch.full((1, 1, 2), float("-inf"))], dim=-1)
    found = token_log_probs(LoopedCausalLMOutput(logits=padded), torch.tensor([[1]])).entropies
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in (found, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimator.preset("rltt", loop_weights="linear"), "'linear'; choose from uniform, progressive, exit"),
        (lambda: Estimator.preset("full", loop_weights="linear"), "'linear'; choose from uniform, progressive, exit"),
        (lambda: Estimator("trainer", 2, loop_weights="uniform"), "need loops_recorded = None"),
        (lambda: Estimator("trainer", 1, loop_weights="exit"), "need loops_recorded = None"),
    ],
)
def test_weights_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_only_rltt_takes_the_weights():
    assert Estimator.preset("rltt") == Estimator("trainer", None, loop_weights="uniform")
    assert Estimator.preset("full", loop_weights="exit").loop_weights is None
