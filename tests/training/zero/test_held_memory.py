"""Bytes that a process holds fall from ZeRO-1 to 3 as they should."""

import pytest

from tests.training.zero.jobs import LARGE


@pytest.fixture(scope="module")
def held(pair):
    """In units of all parameters' bytes, by stage: parameters, gradients, optimizer."""
    whole = sum(weight.numel() * weight.itemsize for weight in pair[LARGE[0]][0]["weights"].values())
    assert whole > 8 << 20
    names = ("parameters", "gradients", "optimizer")
    return {job.stage: [pair[job][0]["logs"][0][f"memory/{name}"] / whole for name in names] for job in LARGE}


def test_two_processes_hold_half_of_what_each_stage_shards(held):
    """Of the optimizer that is two moments and the weights that it updates."""
    assert held[1] == pytest.approx([1, 1, 1.5], rel=0.1)
    assert held[2] == pytest.approx([1, 0.5, 1.5], rel=0.1)
    assert held[3] == pytest.approx([0.5, 0.5, 1.5], rel=0.1)


def test_one_process_holds_everything(in_one_process):
    found = in_one_process(width=256, steps=1)
    whole = sum(weight.numel() * weight.itemsize for weight in found["weights"].values())
    names = ("parameters", "gradients", "optimizer")
    assert [found["logs"][0][f"memory/{name}"] / whole for name in names] == pytest.approx([1, 1, 2], rel=0.01)
