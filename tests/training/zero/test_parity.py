"""On the same rollouts, every ZeRO stage, accumulation and checkpointing trains as one plain process does."""

from dataclasses import replace
from itertools import combinations, product

import pytest
import torch

from tests.training.zero.jobs import (
    ALONE,
    CONTROLLED,
    EMPTY,
    ESTIMATORS,
    FACTORS,
    GRID,
    IDLE,
    OFFLOADED,
    PAIRWISE,
    SEVERAL_LOOPS,
)
from tests.training.zero.taped import HANGS

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def grid(in_two_processes):
    return in_two_processes([*ESTIMATORS, *OFFLOADED, *GRID], seconds=3600)


def assert_same(found, truth):
    """Gradients of every step, per tensor, and losses."""
    assert len(found["gradients"]) == len(truth["gradients"]) == 5
    for step, (ours, theirs) in enumerate(zip(found["gradients"], truth["gradients"], strict=True)):
        assert ours.keys() == theirs.keys()
        for name, gradient in theirs.items():
            assert gradient.norm() > 0
            error = (ours[name] - gradient).norm() / gradient.norm()
            assert error < TOLERANCE, f"step {step}, {name}: {error:.1e}"
    losses = [[log["loss"] for log in each["logs"]] for each in (found, truth)]
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=TOLERANCE)
    assert max(map(abs, losses[1])) > 1e-3


def assert_same_as_one_process(pair, job, in_one_process):
    truth = in_one_process(neumann_steps=job.neumann_steps, tied=job.tied, tape=job.tape, estimator=job.estimator)
    for rank in (0, 1):
        assert_same(pair[job][rank], truth)
        assert pair[job][rank]["seconds"] < HANGS


def test_the_suite_has_every_pair_of_settings():
    for one, other in combinations(FACTORS, 2):
        seen = {(getattr(job, one), getattr(job, other)) for job in PAIRWISE}
        assert seen == set(product(FACTORS[one], FACTORS[other]))


@pytest.mark.parametrize("job", PAIRWISE, ids=lambda job: job.name)
def test_two_processes_under_zero_have_the_gradients_and_losses_of_one(pair, job, in_one_process):
    assert_same_as_one_process(pair, job, in_one_process)


@pytest.mark.parametrize("job", ALONE, ids=lambda job: job.name)
def test_accumulation_and_checkpointing_change_no_gradient_of_one_process(job, in_one_process):
    found = in_one_process(accumulation=job.accumulation, tied=job.tied, checkpointing=job.checkpointing)
    assert_same(found, in_one_process(tied=job.tied))


@pytest.mark.parametrize("job", IDLE, ids=lambda job: job.name)
def test_ranks_that_take_different_numbers_of_products_stay_in_step(pair, job, in_one_process):
    assert_same_as_one_process(pair, job, in_one_process)
    idle, busy = (pair[job][rank]["products"] for rank in (0, 1))
    assert idle == [0] * 5 and min(busy) >= 2


@pytest.mark.parametrize("job", EMPTY, ids=lambda job: job.name)
def test_a_rank_without_any_token_takes_part_in_every_collective(pair, job, in_one_process):
    assert_same_as_one_process(pair, job, in_one_process)
    for log in pair[job][0]["logs"]:
        assert log["dropped/empty_completions"] == 8  # those of the other rank are not counted twice
        assert log["completions/mean_length"] > 1


@pytest.mark.parametrize("job", [*PAIRWISE, *EMPTY], ids=lambda job: job.name)
def test_both_ranks_end_with_the_same_weights(pair, job):
    one, other = (pair[job][rank]["weights"] for rank in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one | other)


def test_ranks_log_the_metrics_of_all(pair, in_one_process):
    """Means over every sequence and sums over every rank, as one process has them."""
    job = IDLE[0]
    truth = in_one_process(neumann_steps=job.neumann_steps, tied=job.tied, tape=job.tape)
    for ours, theirs in zip(pair[job][0]["logs"], truth["logs"], strict=True):
        for name, value in theirs.items():
            if name.startswith(("replay/", "dropped/", "completions/", "reward")):
                assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert pair[job][1]["logs"][-1]["replay/neumann_steps"] == pair[job][0]["logs"][-1]["replay/neumann_steps"]


@pytest.mark.parametrize("job", SEVERAL_LOOPS, ids=lambda job: job.estimator)
def test_zero_3_drops_no_gradient_where_several_loops_are_recorded(pair, job, in_one_process):
    assert_same_as_one_process(pair, job, in_one_process)


def test_the_control_disturbs_no_gradient_under_zero(pair, in_one_process):
    assert_same_as_one_process(pair, CONTROLLED, in_one_process)
    assert all(0 < log["control/cosine_to_full"] < 1 for log in pair[CONTROLLED][0]["logs"])


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("job", ESTIMATORS, ids=lambda job: job.estimator)
def test_every_estimator_has_under_zero_3_the_gradients_of_one_process(grid, job, in_one_process):
    assert_same_as_one_process(grid, job, in_one_process)


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("job", OFFLOADED, ids=lambda job: job.name)
def test_an_offloaded_optimizer_trains_alike(grid, job, in_one_process):
    assert_same_as_one_process(grid, job, in_one_process)


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("job", GRID, ids=lambda job: job.name)
def test_the_whole_grid_has_the_gradients_and_losses_of_one_process(grid, job, in_one_process):
    assert_same_as_one_process(grid, job, in_one_process)


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [replace(job, stage=0) for job in [*PAIRWISE, *GRID] if job.stage == 1], ids=lambda job: job.name
)
def test_the_whole_grid_of_one_process_has_the_same_gradients_and_losses(job, in_one_process):
    settings = {"neumann_steps": job.neumann_steps, "tied": job.tied}
    found = in_one_process(accumulation=job.accumulation, checkpointing=job.checkpointing, **settings)
    assert_same(found, in_one_process(**settings))
