"""Bytes that a process holds fall from ZeRO-1 to 3 as they should, and are those that `looprl plan` tells."""

import json

import pytest
import torch

from looprl.measure.memory_plan import Layout, training_state
from tests.training.zero.held import CASES, wide_model
from tests.training.zero.jobs import LARGE

PADDING = 0.1  # of ZeRO's flat buffers and tied gradients, relative


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


def planned(parameters, stage, itemsize=4, offload=False):
    return {
        name: (device, host) for name, device, host in training_state(Layout(parameters, itemsize, stage, 2, offload))
    }


@pytest.mark.parametrize("job", LARGE, ids=lambda job: f"stage{job.stage}")
def test_the_plan_of_accumulated_updates_is_what_they_held(pair, job):
    found = pair[job][0]
    plan = planned(sum(weight.numel() for weight in found["weights"].values()), job.stage)
    logged = {name: found["logs"][0][f"memory/{name}"] for name in ("parameters", "gradients", "optimizer")}
    assert logged["parameters"] == pytest.approx(plan["weights"][0], rel=PADDING)
    assert logged["gradients"] == pytest.approx(plan["gradients"][0], rel=PADDING)
    assert logged["optimizer"] == pytest.approx(plan["Adam's moments"][0] + plan["master weights"][0], rel=PADDING)


@pytest.mark.slow
def test_the_plan_is_what_deepspeed_holds_in_either_precision_offloaded_or_not(torchrun, tmp_path):
    done = torchrun("held.py", tmp_path / "held.json")
    assert done.returncode == 0, done.stderr[-4000:]
    parameters = sum(parameter.numel() for parameter in wide_model(torch.float32).parameters())
    for (stage, dtype, offload), held in zip(CASES, json.loads((tmp_path / "held.json").read_text()), strict=True):
        plan = planned(parameters, stage, getattr(torch, dtype).itemsize, offload)
        assert held["memory/parameters"] == pytest.approx(plan["weights"][0], rel=PADDING)
        optimizer = [sum(plan[name]) for name in ("Adam's moments", "master weights")]
        assert held["memory/optimizer"] == pytest.approx(sum(optimizer), rel=PADDING)
        # without accumulation ZeRO-1 keeps its share only; offloaded gradients go to the optimizer at once
        assert held["memory/gradients"] <= (1 + PADDING) * plan["gradients"][0]
        if stage > 1 and not offload:
            assert held["memory/gradients"] == pytest.approx(plan["gradients"][0], rel=PADDING)
        if offload:
            assert held["given"] == pytest.approx(plan["their gradients in fp32"][1], rel=PADDING)
            assert not plan["Adam's moments"][0] and not plan["master weights"][0]
