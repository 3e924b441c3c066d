"""The comparison of every estimator: its rows, its figure, and what it finds on models of both kinds."""

from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure

from looprl.gradients import Estimator
from looprl.measure.compare_gradients import cases, compare_gradients, with_endpoint_states
from looprl.measure.estimator_rows import estimator_name
from looprl.measure.gradients_figure import draw, gradients_figure
from looprl.measure.policy_gradient import by_part, cosines, norm, policy_gradient

STEPS = [0, 2, "auto"]
BENCH_KEYS = {
    *("shape", "estimator", "replay_from", "num_loops", "neumann_steps", "seconds", "peak_bytes", "speedup_vs_full")
}


@pytest.fixture(scope="module")
def model(looplm):
    return looplm(hidden_size=32)


@pytest.fixture(scope="module")
def batch(model, rollouts):
    return rollouts(model, 4)


@pytest.fixture(scope="module")
def rows(model, batch):
    return list(compare_gradients(model, batch, 4, STEPS, repeats=1, device="cpu"))


def row_of(rows, name):
    return next(row for row in rows if estimator_name(row) == name)


def test_every_estimator_has_a_row_with_the_keys_of_the_design(rows):
    assert [estimator_name(row) for row in rows] == [
        *("full", "full_checkpointed", "rltt uniform", "rltt progressive"),
        *("truncated b=1", "truncated b=3", "recompute K=0", "reuse K=0"),
        *("recompute K=2", "reuse K=2", "recompute LS K=2", "reuse LS K=2", "recompute K=auto", "reuse K=auto"),
        *("recompute LS K=auto", "reuse LS K=auto"),
        *("recompute endpoint K=0", "endpoint K=0", "recompute endpoint K=2", "endpoint K=2"),
        *("recompute endpoint K=auto", "endpoint K=auto"),
    ]
    for row in rows:
        assert row.keys() >= {*BENCH_KEYS, "cosine_to_full", "cosine_to_recompute", "norm_ratio", "logprob_gap_max"}
        assert row["shape"] == "8x48xd32" and row["num_loops"] == 4
        assert row["cosine_to_full"].keys() == {"all", "prelude", "injection", "core", "coda", "head"}
        assert (row["cosine_to_recompute"] is None) == (row["estimator"] != "reuse")
        assert row["seconds"] > 0 and row["peak_bytes"] > 0


def test_truncation_at_all_loops_is_left_out_as_it_is_full_bptt():
    assert [case.estimator.loops_recorded for case in cases([0, 3, 8], 4) if case.name == "truncated"] == [1]


def test_rltt_by_the_exit_distribution_is_compared_where_there_is_a_gate():
    names = [case.estimator.loop_weights for case in cases([0], 4, exit_gate=True) if case.name == "rltt"]
    assert names == ["uniform", "progressive", "exit"]


def test_the_tolerance_of_auto_and_steps_given_twice():
    tolerances = {case.estimator.solver.tolerance for case in cases(["auto"], 4, 0.03) if case.has_series}
    assert tolerances == {0.03}


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("rltt progressive", Estimator.preset("rltt", loop_weights="progressive")),
        ("truncated b=3", Estimator.preset("truncated", loops_recorded=3)),
        ("recompute K=2", Estimator.preset("recompute", 2)),
        ("reuse LS K=2", Estimator.preset("reuse", 2, adjoint_solver="least_squares")),
        ("endpoint K=2", Estimator.preset("reuse", 2, "endpoint")),
        ("reuse K=auto", Estimator.preset("reuse", "auto")),
    ],
)
def test_a_row_tells_of_the_gradient_of_its_estimator(model, batch, rows, name, estimator):
    row, parts = row_of(rows, name), by_part(model)
    full = policy_gradient(model, batch, Estimator.preset("full"), 4).gradients
    computed = policy_gradient(model, batch, estimator, 4)
    assert row["cosine_to_full"] == pytest.approx(cosines(computed.gradients, full, parts), abs=1e-6)
    assert row["norm_ratio"] == pytest.approx(norm(computed.gradients) / norm(full), rel=1e-5)
    gaps = (computed.logps - batch.sampler_logps).abs()
    assert row["logprob_gap_max"] == pytest.approx(gaps.max().item(), abs=1e-5)
    assert row["cosine_to_full"]["all"] < 0.9999


def test_the_two_error_sources_are_told_apart(model, batch):
    """States of other tokens hurt reuse against recompute and nothing else; a shorter series hurts recompute."""
    shifted = {start: state.roll(1, dims=1) for start, state in batch.states.items()}
    rows = list(compare_gradients(model, replace(batch, states=shifted), 4, [0, 2], repeats=1, device="cpu"))
    assert row_of(rows, "reuse K=2")["cosine_to_recompute"]["all"] < 0.9
    short, long = (row_of(rows, f"recompute K={steps}")["cosine_to_full"]["core"] for steps in (0, 2))
    assert short < long - 0.003


def test_reuse_of_the_trainers_own_states_is_recompute(rows):
    for row in rows:
        if row["estimator"] == "reuse":
            assert row["cosine_to_recompute"]["all"] == pytest.approx(1, abs=1e-6)


def test_full_bptt_and_its_checkpointed_form_agree_with_themselves(rows):
    for name in ("full", "full_checkpointed"):
        row = row_of(rows, name)
        assert row["cosine_to_full"] == pytest.approx(dict.fromkeys(row["cosine_to_full"], 1), abs=1e-6)
        assert row["norm_ratio"] == pytest.approx(1, abs=1e-5) and row["logprob_gap_max"] < 1e-5


def test_padding_has_no_part_in_the_log_prob_gap(model, batch):
    mask = batch.attention_mask.clone()
    mask[:, -5:] = 0
    weights, logps = batch.weights.clone(), batch.sampler_logps.clone()
    weights[:, -5:], logps[:, -5:] = 0, -1000.0
    padded = replace(batch, attention_mask=mask, weights=weights, sampler_logps=logps)
    rows = list(compare_gradients(model, padded, 4, [0], repeats=1, device="cpu"))
    assert row_of(rows, "full")["logprob_gap_max"] < 1e-3


def test_endpoints_are_one_loop_after_the_penultimate_states(model, batch):
    found = with_endpoint_states(model, replace(batch, states={"penultimate": batch.states["penultimate"]}))
    torch.testing.assert_close(found.states["endpoint"], batch.states["endpoint"], rtol=1e-4, atol=1e-5)


def test_states_of_another_shape_are_refused(model, batch):
    short = replace(batch, states={start: state[:, 1:] for start, state in batch.states.items()})
    with pytest.raises(ValueError, match="initial_state has shape"):
        list(compare_gradients(model, short, 4, [0], repeats=1, device="cpu"))


def test_the_figure_has_a_line_for_each_start_and_number_of_loops_and_says_what_it_shows(rows):
    other = [{**row, "num_loops": 7} for row in rows]
    figure = draw(rows + other)
    assert isinstance(figure, Figure)
    fidelity, cost = figure.axes
    labels = [text.get_text() for text in fidelity.get_legend().get_texts()]
    assert {f"{start}, R = {loops}" for start in ("reuse", "endpoint", "least squares") for loops in (4, 7)} <= {
        *labels
    }
    assert fidelity.get_ylabel() == "1 - cosine to full BPTT" and cost.get_ylabel() == "scoring + backward (s)"
    assert all("Neumann steps K" in axes.get_xlabel() for axes in figure.axes)
    line = next(line for line in fidelity.lines if line.get_label() == "reuse, R = 4")
    expected = [1 - row_of(rows, f"reuse K={steps}")["cosine_to_full"]["all"] for steps in (0, 2)]
    assert list(line.get_xdata()) == [0, 2] and list(line.get_ydata()) == pytest.approx(expected)
    assert gradients_figure(rows).startswith(b"\x89PNG")
