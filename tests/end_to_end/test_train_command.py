"""`looprl train` end to end: it learns, it repeats itself exactly, it takes real rows, it can be stopped."""

import json
import signal
import time
from pathlib import Path

import pytest
import yaml

from looprl.models import load_model
from looprl.runs import read_metrics
from tests.run_metrics import without_clocks

SMALL = ("--per_device_train_batch_size", 32, "--eval_size", 32, "--dataset_size", 256)
LONGER_TASK = (
    *("--transfer_dataset", "arithmetic", "--transfer_task_options", '{"num_steps": 3}', "--transfer_size", 24),
    *("--transfer_max_completion_length", 21),
)
ROWS = Path("tests/data/gsm8k_train_48.jsonl")


def json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(folder):
    rows = read_metrics(folder / "metrics.jsonl")
    return [without_clocks(row) for row in rows]


@pytest.fixture(scope="module")
def short_run(looprl, tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    output = looprl("train", "recipes/quickstart.yaml", "--output_dir", folder, "--max_steps", 3, *SMALL, *LONGER_TASK)
    return folder, output


def test_run_folder_holds_what_the_design_promises(short_run):
    folder, output = short_run
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["seed"], config["neumann_steps"], config["estimator"]) == (0, 4, "reuse")
    assert config["versions"]["trl"].startswith("1.16")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["n"], summary["steps"]) == (32, 3)
    assert 0 <= summary["pass_at_1_before"] <= 1 and 0 <= summary["pass_at_1_after"] <= 1
    assert load_model(str(folder / "checkpoints" / "step-3")).config.num_loops == 6
    assert sorted(path.name for path in (folder / "completions").iterdir()) == [
        "eval-after.jsonl",
        "eval-before.jsonl",
        "step-00000.jsonl",
        "step-00001.jsonl",
        "step-00002.jsonl",
        "transfer-after.jsonl",
        "transfer-before.jsonl",
    ]
    assert "pass@1" in output and str(folder) in output.replace("\n", "")


def test_a_second_task_is_measured_before_and_after(short_run):
    folder, output = short_run
    summary = json.loads((folder / "summary.json").read_text())
    for when in ("before", "after"):
        rows = json_lines(folder / "completions" / f"transfer-{when}.jsonl")
        assert len(rows) == summary["transfer_n"] == 24
        assert sum(row["reward"] == 1 for row in rows) / 24 == summary[f"transfer_pass_at_1_{when}"]
        # three steps take 17 to 20 tokens, more than training's limit of 16
        assert any(len(row["completion"].split("\n")) >= 4 for row in rows)
    assert "on 24 transfer prompts" in output
    assert "transfer, after training" in (folder / "report.html").read_text()


def test_every_step_logs_the_metrics_of_the_design(short_run):
    rows = read_metrics(short_run[0] / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    trl = ["loss", "reward", "frac_reward_zero_std", "clip_ratio/region_mean", "entropy"]
    lengths = ["completions/mean_length", "completions/clipped_ratio"]
    replay = ["replay/logprob_gap_mean", "replay/logprob_gap_max", "replay/residual", "replay/neumann_steps"]
    times = [f"time/{phase}" for phase in ("rollout", "reward", "scoring", "backward", "optimizer", "sync")]
    dropped = ["dropped/preempted", "dropped/empty_completions", "dropped/zero_variance_groups"]
    for row in rows:
        assert all(isinstance(row[key], int | float) for key in trl + lengths + replay + times + dropped)
        assert row["replay/logprob_gap_max"] < 1e-5
        assert all(row[key] > 0 for key in times)


def test_the_same_command_gives_the_same_metrics_with_a_second_task_and_without(short_run, looprl, tmp_path):
    again = tmp_path / "again"
    looprl("train", "recipes/quickstart.yaml", "--output_dir", again, "--max_steps", 3, *SMALL)
    assert metrics(again) == metrics(short_run[0])
    for name in ("step-00002", "eval-after"):
        first, second = (folder / "completions" / f"{name}.jsonl" for folder in (short_run[0], again))
        assert first.read_text() == second.read_text()


def test_real_gsm8k_rows_are_trained_on_and_none_is_dropped(looprl, tmp_path):
    rows = json_lines(ROWS)
    folder = tmp_path / "gsm8k"
    looprl(
        "train",
        "recipes/quickstart.yaml",
        *("--dataset", ROWS, "--reward", "rewards/gsm8k.py:accuracy"),
        *("--output_dir", folder, "--max_steps", 3, "--per_device_train_batch_size", 32, "--num_generations", 2),
    )
    logged = read_metrics(folder / "metrics.jsonl")
    assert len(logged) == 3
    assert all(row[key] == 0 for row in logged for key in row if key.startswith("dropped/") and "variance" not in key)
    # far from its training text, one loop of the trained model amplifies fp32 rounding to 5e-5
    assert all(row["replay/logprob_gap_max"] < 1e-4 for row in logged)
    questions = {f"{row['question']}\n" for row in rows}
    seen = [row["prompt"] for step in range(3) for row in json_lines(folder / f"completions/step-0000{step}.jsonl")]
    assert len(seen) == 3 * 32 and set(seen) == questions
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["pass_at_1_before"] is None and summary["steps"] == 3


def test_flipping_the_sign_of_the_advantages_makes_it_worse(looprl, tmp_path):
    folder = tmp_path / "flipped"
    looprl(
        "train",
        "recipes/quickstart.yaml",
        *("--reward_weights", -1, "--output_dir", folder, "--max_steps", 20),
        *("--per_device_train_batch_size", 96, "--learning_rate", 1e-3, "--eval_size", 256),
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["pass_at_1_after"] < summary["pass_at_1_before"] - 0.1


def test_ctrl_c_leaves_a_readable_run_folder(start_looprl, tmp_path):
    folder = tmp_path / "stopped"
    process = start_looprl("train", "recipes/quickstart.yaml", "--output_dir", folder, *SMALL)
    deadline = time.monotonic() + 240
    lines = folder / "metrics.jsonl"
    while not (lines.exists() and len(lines.read_text().splitlines()) >= 2):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert str(folder) in error.replace("\n", "") and "Traceback" not in error
    assert [row["step"] for row in read_metrics(lines)][:2] == [1, 2]
    assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quickstart_learns_from_every_seed(looprl, tmp_path, seed):
    folder = tmp_path / f"seed{seed}"
    looprl("train", "recipes/quickstart.yaml", "--output_dir", folder, "--seed", seed)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["n"] >= 256
    assert 0.25 <= summary["pass_at_1_before"] <= 0.45
    assert summary["pass_at_1_after"] >= 0.75
