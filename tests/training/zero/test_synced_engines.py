"""Real engines in two ranks: each holds the trainer's weights after every sync, and all ranks stay alike."""

import pytest
import torch

from tests.training.zero.synced import FAILING, RESUMED, STEPS


@pytest.fixture(
    scope="module",
    params=[(3, "tied"), pytest.param((2, "untied"), marks=pytest.mark.slow)],
    ids=lambda values: f"zero{values[0]}-{values[1]}",
)
def trainings(request, torchrun, tmp_path_factory):
    stage, tied = request.param
    folder = tmp_path_factory.mktemp("synced")
    done = torchrun("synced.py", folder, stage, tied)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture(scope="module")
def ranks(trainings):
    return [rank["whole"] for rank in trainings]


def test_every_engine_has_the_trainers_weights_after_every_sync(ranks):
    for rank in ranks:
        assert len(rank["checksums"]) == STEPS + 1
        assert all(trainer == engine for trainer, engine in rank["checksums"])
    assert ranks[0]["checksums"] == ranks[1]["checksums"]
    assert len(set(ranks[0]["checksums"])) == STEPS + 1  # each step moved them


def test_every_rank_replays_its_own_samples_exactly(ranks):
    """The gap is the largest of both ranks; a state or weight of the other rank would be off by 1e-2 and more."""
    assert all(log["replay/logprob_gap_max"] < 1e-4 for log in ranks[0]["logs"])


def test_a_group_that_two_ranks_share_is_sampled_with_different_randomness(ranks):
    for samples in ranks[0]["samples"]:
        assert len(samples) == 8  # one group of eight, half from each rank
        assert samples[:4] != samples[4:]
    assert ranks[1]["samples"] == []  # each completion is logged once


def test_completions_of_different_lengths_in_the_ranks_stop_nothing(ranks):
    lengths = list(zip(*(rank["longest"] for rank in ranks), strict=True))
    assert len(ranks[0]["logs"]) == len(lengths) == STEPS
    assert any(one > other for one, other in lengths) and any(one < other for one, other in lengths)


def test_a_training_that_is_gone_on_with_is_the_same_from_its_first_rollout_on(trainings):
    """Weights of trainer and engine at every sync, samples and metrics; two engines are replaced on the way."""
    for whole, resumed in ((rank["whole"], rank["resumed"]) for rank in trainings):
        assert len(resumed["checksums"]) == STEPS + 1 - RESUMED
        assert resumed["checksums"] == whole["checksums"][RESUMED:]
        assert resumed["samples"] == whole["samples"][RESUMED:]
        assert [log["step"] for log in resumed["logs"]] == list(range(1, STEPS + 1))
        for name in ("loss", "grad_norm", "replay/logprob_gap_max"):
            assert [log[name] for log in resumed["logs"]] == [log[name] for log in whole["logs"]]


def test_an_engine_that_fails_in_one_rank_is_replaced_and_counted_once(trainings):
    """In its sampling, and while it is given weights."""
    assert [(rank["whole"]["restarts"], rank["resumed"]["restarts"]) for rank in trainings] == [(0, 0), (0, 2)]
    counts = [log["dropped/engine_restarts"] for log in trainings[0]["resumed"]["logs"]]
    assert counts == [step in (FAILING, FAILING + 1) for step in range(STEPS)]


def test_a_training_that_is_done_has_the_weights_of_its_end(trainings):
    for rank in trainings:
        assert rank["done"]["checksums"] == rank["whole"]["checksums"][-1:]
