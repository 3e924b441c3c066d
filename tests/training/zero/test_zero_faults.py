"""Under ZeRO an update that is not finite in one process is skipped in all of them, counted once, and not for ever."""

import pytest
import torch

from looprl.training.faults import SKIPPED
from tests.training.zero.jobs import ENDED, SKIPPING, SKIPPING_OFFLOADED


@pytest.mark.parametrize("job", SKIPPING, ids=lambda job: job.name)
def test_a_loss_that_is_not_finite_in_one_rank_skips_the_update_of_all(pair, job):
    assert_skipped(pair[job])


@pytest.mark.slow
def test_an_offloaded_optimizer_skips_it_too(in_two_processes):
    for ranks in in_two_processes(SKIPPING_OFFLOADED).values():
        assert_skipped(ranks)


def assert_skipped(ranks):
    """The second and third of five updates."""
    for found in ranks:
        assert found["error"] is None
        assert found["moved"] == [True, False, False, True, True]
        assert [log[SKIPPED] for log in found["logs"]] == [0, 1, 1, 0, 0]
    weights = [found["weights"] for found in ranks]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert all(weight.isfinite().all() for weight in weights[0].values())


def test_too_many_in_a_row_end_the_run_in_every_rank_with_its_rollouts_saved(pair):
    for rank, found in enumerate(pair[ENDED]):
        assert found["moved"] == [True, False, False]
        assert f"nonfinite/step-4-rank-{rank}.pt" in found["error"] and "3 updates in a row" in found["error"]
