"""Planned sizes against what tensors really take: of an optimizer without ZeRO, and of what a rollout leaves."""

import pytest
import torch

from looprl.measure.memory_plan import Held, Layout, Rollouts, rollout_memory, training_state
from looprl.measure.plan_report import shown_bytes
from tests.published import random_published


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_zero_adamw_holds_what_is_planned(dtype):
    model = random_published("parcae").to(dtype)
    model(torch.tensor([[1, 2, 3]])).logits.float().logsumexp(-1).mean().backward()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    real = {
        "weights": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": sum(parameter.grad.nbytes for parameter in model.parameters()),
        "Adam's moments": sum(moment.nbytes for moment in moments),
    }
    layout = Layout(sum(parameter.numel() for parameter in model.parameters()), dtype.itemsize)
    assert {name: device for name, device, host in training_state(layout)} == real
    assert not any(host for _, _, host in training_state(layout))


def test_stages_shard_one_thing_after_the_other():
    def held(stage, processes=4, itemsize=2):
        return {name: device for name, device, _ in training_state(Layout(1000, itemsize, stage, processes))}

    assert held(1) == {"weights": 2000, "gradients": 2000, "Adam's moments": 2000, "master weights": 1000}
    assert held(2) == held(1) | {"gradients": 500}
    assert held(3) == held(2) | {"weights": 500}
    assert held(3, processes=3)["weights"] == 2 * 334
    in_fp32 = dict(each[:2] for each in training_state(Layout(1000, 2, 3, 4, fp32_gradients=True)))
    assert in_fp32 == held(3) | {"gradients": 1000}


def test_offloading_moves_the_optimizer_to_the_host():
    here, offloaded = (training_state(Layout(1000, 2, 2, 4, offload)) for offload in (False, True))
    assert offloaded[:2] == here[:2]
    assert [(name, host) for name, _, host in offloaded[2:4]] == [(name, device) for name, device, _ in here[2:]]
    assert sum(device for _, device, _ in offloaded[2:]) == 0
    assert offloaded[4] == Held("their gradients in fp32", 0, 1000)


def test_a_rollout_takes_its_window_for_every_completion():
    settings = dict(
        completions=6, window=10, kv_per_token=100, state_per_token=7, engine_parameters=1001, itemsize=2, replayed=True
    )
    weights, keys, cached, states = rollout_memory(Rollouts(**settings))
    assert [each.device for each in (weights, keys, cached, states)] == [2002, 6000, 420, 420]
    assert states.host == 420 and weights.host == keys.host == cached.host == 0
    assert rollout_memory(Rollouts(**settings | {"replayed": False}))[3] == (states.name, 0, 420)
    shared = rollout_memory(Rollouts(**settings, ranks=2))
    assert [each.device for each in shared] == [1002, 6000, 840, 420]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (15 << 19, "7.50 MiB"), (3 << 40, "3.00 TiB")]
)
def test_sizes_are_shown_in_the_unit_that_they_fill(size, text):
    assert shown_bytes(size) == text
