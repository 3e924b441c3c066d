"""The verdict: each threshold from both sides, and the words that follow from it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from looprl.measure.initial_states import StartGap
from looprl.measure.inspection import Inspection, KVLikelihood, LoopRow, SpectralRadius
from looprl.measure.policy_gradient import SAFE_COSINE
from looprl.measure.reuse import ReuseRow
from looprl.measure.verdict import (
    DEPTH_GAIN,
    ENDPOINT_GAP,
    KV_DIFFERENCE,
    LEAST_KV_TOKENS,
    RESTING_RESIDUAL,
    START_GAP,
    judge,
)

GOOD, BAD = SAFE_COSINE + 0.001, SAFE_COSINE - 0.001


def loops(residuals, nlls=None):
    nlls = nlls or [1.0] * len(residuals)
    return tuple(
        LoopRow(r, value, value, value, 1.0, 1.0, 0, nll)
        for r, (value, nll) in enumerate(zip(residuals, nlls, strict=True), start=1)
    )


def rows(estimator, start, cosines, gap=0.0):
    return tuple(
        ReuseRow(estimator, start, 2, steps, {"all": cosine}, 1.0, gap, gap) for steps, cosine in enumerate(cosines)
    )


def inspection(penultimate=(GOOD,) * 3, endpoint=(GOOD,) * 3, recompute=(GOOD,) * 3, gap=0.0, **measured):
    """R = 2 of a healthy model, but for what is given."""
    healthy = Inspection(
        num_loops=2,
        kv_policy="terminal",
        tokens=100,
        loops=loops([0.1, 0.01, 0.001, 0.0001]),
        tokens_not_converging=0,
        spectral_radius=SpectralRadius(0.5, 0.6, 8, 0),
        kv=KVLikelihood(1.0, 1.0, 0.0, 0.0, 50),
        reuse=(
            *rows("reuse", "penultimate", penultimate),
            *rows("reuse", "endpoint", endpoint, gap),
            *rows("recompute", "penultimate", recompute),
            *rows("recompute", "endpoint", recompute, gap),
        ),
    )
    return replace(healthy, **measured)


def test_a_healthy_model_is_safe_in_everything():
    verdict = judge(inspection())
    assert [finding.safe for finding in verdict.findings] == [True] * 5
    assert all(finding.answer.startswith("Yes") for finding in verdict.findings)
    assert verdict.recipe == {"estimator": "reuse", "replay_from": "penultimate", "neumann_steps": 0}


@pytest.mark.parametrize(
    ("cosines", "words", "steps"),
    [
        ((BAD, GOOD, 1.0), "neumann_steps: 1 or more, up to the 2 that were tried (cosine to full BPTT 0.9910 at 1", 1),
        ((BAD, BAD, SAFE_COSINE), "neumann_steps: 2 (cosine", 2),
        ((BAD, GOOD, BAD), "neumann_steps: 1 (cosine", 1),
        ((GOOD, GOOD, BAD), "neumann_steps: 0, 1 (cosine", 0),
    ],
)
def test_reuse_is_safe_with_the_steps_whose_cosine_is(cosines, words, steps):
    verdict = judge(inspection(penultimate=cosines))
    assert verdict.reuse_from_penultimate.safe and words in verdict.reuse_from_penultimate.answer
    assert verdict.recipe["neumann_steps"] == steps


@pytest.mark.parametrize("undefined", [None, BAD])
def test_reuse_without_a_safe_step_is_unsafe_and_names_the_best(undefined):
    verdict = judge(inspection(penultimate=(0.5, 0.91, undefined and 0.9), endpoint=(BAD,) * 3))
    assert not verdict.reuse_from_penultimate.safe and not verdict.reuse_from_endpoint.safe
    assert verdict.reuse_from_penultimate.answer == (
        "No: the best cosine to full BPTT 0.9100 at K = 1 (safe: 0.99), and with recomputed states 0.9910 at K = 0."
    )
    assert verdict.recipe == {"estimator": "recompute", "replay_from": "penultimate", "neumann_steps": 0}
    nothing = judge(inspection(penultimate=(BAD,) * 3, endpoint=(BAD,) * 3, recompute=(BAD,) * 3))
    assert nothing.recipe == {"estimator": "full"}


def test_the_endpoint_also_needs_a_small_log_prob_gap():
    safe, unsafe = judge(inspection(gap=0.99 * ENDPOINT_GAP)), judge(inspection(gap=1.01 * ENDPOINT_GAP))
    assert safe.reuse_from_endpoint.safe and unsafe.reuse_from_penultimate.safe
    assert not unsafe.reuse_from_endpoint.safe and "loop R + 1" in unsafe.reuse_from_endpoint.answer
    assert not judge(inspection(gap=math.nan)).reuse_from_endpoint.safe
    only = judge(inspection(penultimate=(BAD,) * 3, endpoint=(BAD, GOOD, GOOD)))
    assert only.recipe == {"estimator": "reuse", "replay_from": "endpoint", "neumann_steps": 1}


@pytest.mark.parametrize(
    ("residual", "median", "safe"),
    [
        (RESTING_RESIDUAL, 0.99, True),
        (1.01 * RESTING_RESIDUAL, 0.5, False),
        (0.001, 1.0, False),
        (math.nan, 0.5, False),
        (0.001, math.nan, False),
    ],
)
def test_the_loop_converges_where_residual_and_radius_say_so(residual, median, safe):
    measured = dict(loops=loops([0.3, residual, 0.3, 0.2]), spectral_radius=SpectralRadius(median, 1.2, 8, 3))
    finding = judge(inspection(**measured)).converges
    assert finding.safe is safe and "1 or more in 3 of 8 sequences" in finding.answer


def test_a_loop_that_is_not_at_rest_says_when_it_would_be():
    assert (
        "it would be converged after 4 loops" in judge(inspection(loops=loops([0.3, 0.2, 0.1, 0.04]))).converges.answer
    )
    assert "after 4 loops it is still 9 %" in judge(inspection(loops=loops([0.3, 0.2, 0.1, 0.09]))).converges.answer


@pytest.mark.parametrize(
    ("difference", "error", "word"),
    [
        (0.9 * KV_DIFFERENCE, 0.0, "Yes"),
        (-0.9 * KV_DIFFERENCE, 0.0, "Yes"),
        (1.1 * KV_DIFFERENCE, 0.0, "No:"),
        (-1.1 * KV_DIFFERENCE, 0.0, "No:"),
        (1.1 * KV_DIFFERENCE, 0.1 * KV_DIFFERENCE, "Not shown on 50 tokens"),
        (0.9 * KV_DIFFERENCE, 0.1 * KV_DIFFERENCE, "Not shown on 50 tokens"),
        (math.nan, math.nan, "Not shown"),
    ],
)
def test_terminal_kv_is_safe_where_the_likelihood_surely_stays(difference, error, word):
    finding = judge(inspection(kv=KVLikelihood(1 + difference, 1.0, difference, error, 50))).terminal_kv
    assert finding.answer.startswith(word) and finding.safe is (word == "Yes")


def test_a_better_number_of_loops_is_named():
    flat, better = [1.0, 1.0, 1.0 - 0.9 * DEPTH_GAIN, 1.0], [1.0, 1.0, 1.0 - 1.1 * DEPTH_GAIN, 1.0]
    residuals = [0.1, 0.01, 0.001, 0.0001]
    assert judge(inspection(loops=loops(residuals, flat))).depth.safe
    finding = judge(inspection(loops=loops(residuals, better))).depth
    assert not finding.safe and "0.978 at 3 loops" in finding.answer


def test_the_documented_thresholds_are_those_in_use():
    text = (Path(__file__).parents[2] / "docs/inspect.md").read_text()
    assert f"mean residual at R at most {RESTING_RESIDUAL}," in text
    assert f"within {KV_DIFFERENCE} nats per token" in text
    assert f"a cosine of {SAFE_COSINE} or more" in text
    assert f"mean log-prob gap at most {ENDPOINT_GAP} nats" in text
    assert f"better by more than {DEPTH_GAIN} nats" in text


def test_a_text_of_a_few_tokens_shows_nothing_about_terminal_kv():
    short = replace(inspection().kv, tokens=LEAST_KV_TOKENS - 1, standard_error=0.0)
    finding = judge(inspection(kv=short)).terminal_kv
    assert not finding.safe and finding.answer.startswith(f"Not shown on {LEAST_KV_TOKENS - 1} tokens")


@pytest.mark.parametrize(
    ("distance", "logprobs", "safe"),
    [
        (RESTING_RESIDUAL, START_GAP, True),
        (RESTING_RESIDUAL * 1.01, 0.0, False),
        (0.0, START_GAP * 1.01, False),
        (math.nan, 0.0, False),
        (0.0, math.nan, False),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_the_endpoint_is_the_same_where_every_pair_of_initial_states_ends_close(distance, logprobs, safe, place):
    gaps = [StartGap("zero", "drawn 1", 0.0, 0.0, 0.0) for _ in range(3)]
    gaps[place] = replace(gaps[place], distance=distance, logprob_gap_mean=logprobs, logprob_gap_max=1.0)
    verdict = judge(inspection(initial_states=tuple(gaps)))
    assert verdict.initial_state in verdict.findings and verdict.initial_state.safe == safe
    assert verdict.initial_state.answer.startswith("Yes: from zero" if safe else "No: from zero")
    assert ("Use the initial_state" in verdict.initial_state.answer) != safe


def test_a_model_of_a_single_initial_state_has_no_finding_about_it():
    assert judge(inspection()).initial_state is None
