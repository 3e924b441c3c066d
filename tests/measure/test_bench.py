"""The bench: every estimator on the same work, rows as the design names them, a figure, stock TRL as it comes."""

import json

import pytest
import torch
from transformers import SchedulerType

from looprl.cli import main
from looprl.gradients import Estimator
from looprl.measure import bench_updates as updates
from looprl.measure.bench_figure import write_figure
from looprl.measure.estimator_rows import estimator_name
from looprl.training.config import LoopedGRPOConfig
from looprl.training.product_bench import product_cost_under_zero
from looprl.training.step_bench import _stock_settings

TINY = updates.Shape(2, 16, 64)
KEYS = {"shape", "estimator", "replay_from", "num_loops", "neumann_steps", "seconds", "peak_bytes", "speedup_vs_full"}


@pytest.fixture(scope="module")
def rows():
    return list(updates.bench_updates([TINY], [2, 5], repeats=1))


def test_every_estimator_has_a_row_for_every_number_of_loops(rows):
    assert all(row.keys() >= KEYS and row["shape"] == "2x16xd64" for row in rows)
    for num_loops in (2, 5):
        assert [estimator_name(row) for row in rows if row["num_loops"] == num_loops] == [
            *("full", "full_checkpointed", "rltt uniform", "truncated b=4", "recompute K=4"),
            *("reuse K=0", "reuse K=2", "reuse LS K=2", "reuse K=4", "reuse K=auto"),
        ]
    for row in rows:
        full = next(other for other in rows if other["num_loops"] == row["num_loops"])
        assert row["speedup_vs_full"] == pytest.approx(full["seconds"] / row["seconds"])


def test_memory_grows_with_the_loops_for_full_and_does_not_for_reuse(rows):
    peak = {(row["estimator"], row["neumann_steps"], row["num_loops"]): row["peak_bytes"] for row in rows}
    assert peak["full", 0, 5] > 1.5 * peak["full", 0, 2]
    assert peak["reuse", 4, 5] == pytest.approx(peak["reuse", 4, 2], rel=0.05)


def test_the_timed_updates_compute_the_gradients_of_their_estimators():
    model = TINY.model("cpu")

    def gradient(estimator):
        updates._update(model, TINY, 3, estimator)()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    full = gradient(Estimator.preset("full"))
    torch.testing.assert_close(gradient(Estimator.preset("full_checkpointed")), full)
    reuse, recompute = (gradient(Estimator.preset(name, neumann_steps=2)) for name in ("reuse", "recompute"))
    torch.testing.assert_close(reuse, recompute, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(reuse, full)


def test_a_jacobian_product_costs_about_as_much_as_a_loop():
    assert 0.2 < updates.jacobian_product_cost(TINY, repeats=3, device="cpu") < 20


@pytest.mark.slow
def test_a_jacobian_product_costs_at_most_a_tenth_more_under_every_zero_stage():
    costs = product_cost_under_zero(repeats=5)
    assert list(costs) == ["1", "2", "3"]
    assert all(0.8 < cost < 1.1 for cost in costs.values()), costs


def test_the_command_prints_a_table_and_writes_json_and_figure(tmp_path, monkeypatch, capsys):
    for module in (updates, __import__("looprl.commands.bench", fromlist=["bench"])):
        monkeypatch.setattr(module, "SHAPES", (TINY,))
        monkeypatch.setattr(module, "LOOPS", (2,))
    out, figure = tmp_path / "bench.json", tmp_path / "bench.png"
    threads = torch.get_num_threads()
    flags = ["--step", "false", "--zero", "false", "--repeats", "1", "--json", str(out), "--figure", str(figure)]
    assert main(["bench", *flags]) == 0
    torch.set_num_threads(threads)
    rows = json.loads(out.read_text())
    assert [row["estimator"] for row in rows][:2] == ["full", "full_checkpointed"]
    printed = capsys.readouterr().out
    assert "x full" in printed and "J^T product" in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_the_figure_has_a_panel_for_each_shape_and_number_of_loops(rows, tmp_path):
    write_figure(rows, tmp_path / "bench.svg")
    text = (tmp_path / "bench.svg").read_text()
    assert all(f"2x16xd64, R = {num_loops}" in text for num_loops in (2, 5))


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--device", "tpu"], "choose cpu or cuda"), (["--repeats", "0"], "at least 1")],
)
def test_bad_options_are_user_errors(flags, message, capsys):
    assert main(["bench", *flags]) == 2
    assert message in capsys.readouterr().err


def test_stock_trl_gets_the_recipe_s_settings_and_its_own_sampling(tmp_path):
    args = LoopedGRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        learning_rate=3e-4,
        max_completion_length=16,
        warmup_steps=5,
        max_steps=40,
        seed=7,
    )
    settings = _stock_settings(args)
    shared = ("per_device_train_batch_size", "learning_rate", "max_completion_length", "warmup_steps", "seed")
    assert all(settings[name] == getattr(args, name) for name in shared)
    assert (settings["loss_type"], settings["scale_rewards"]) == ("dr_grpo", "none")
    assert settings["use_vllm"] is False and settings["gradient_checkpointing"] is False
    assert settings["lr_scheduler_type"] == SchedulerType.CONSTANT_WITH_WARMUP
    assert "neumann_steps" not in settings
