"""An engine that two ranks share samples what an engine of one rank's own would, with half of the weights in each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, Path(__file__).with_name("shared.py"), folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]


def test_each_rank_has_the_records_of_its_own_prompts(ranks):
    for rank, found in enumerate(ranks):
        assert len(found["shared"]) == len(found["own"]) == 3 + rank
        for shared, own in zip(found["shared"], found["own"], strict=True):
            assert shared.prompt_ids == own.prompt_ids and shared.completion_ids == own.completion_ids
            assert torch.allclose(shared.states, own.states, atol=1e-5)
            assert torch.allclose(shared.logprobs, own.logprobs, atol=1e-5)


def test_each_rank_has_half_of_the_weights(ranks):
    assert all(found["shared weights"] * 2 == found["own weights"] for found in ranks)


def test_ranks_that_ask_with_different_seeds_stay_in_step(ranks):
    for rank, found in enumerate(ranks):
        assert [len(record.completion_ids) for record in found["seeded apart"]] == [8] * (3 + rank)


def test_a_rank_without_prompts_takes_part(ranks):
    assert ranks[0]["empty"] == [] and len(ranks[1]["empty"]) == 4
