"""`looprl train` in two processes: one run folder of both, and no rank that waits for one that is gone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import yaml

from looprl.models import load_model
from looprl.runs import read_metrics

TWO = ("--num_processes", 2, "--per_device_train_batch_size", 8, "--dataset_size", 64, "--eval_size", 17)
RECIPE = "recipes/quickstart.yaml"


def json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ranks_of(launcher):
    """The processes of the ranks, by rank."""
    return {int(child.environ()["RANK"]): child for child in psutil.Process(launcher.pid).children()}


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def run(looprl, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair") / "run"
    flags = ("--zero_stage", 3, "--max_steps", 2, "--eval_every", 2, "--gradient_accumulation_steps", 2)
    return folder, looprl("train", RECIPE, *TWO, *flags, "--output_dir", folder)


def test_two_processes_write_one_run_folder(run):
    folder, output = run
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["num_processes"], config["zero_stage"]) == (2, 3)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["time/optimizer"] > 1e-4 and row["memory/parameters"] > 0 for row in rows)
    assert all(row["replay/logprob_gap_max"] < 1e-5 for row in rows)
    assert output.count("pass@1") == 1


def test_each_completion_is_logged_once(run):
    names = sorted(path.name for path in (run[0] / "completions").iterdir())
    assert names == ["eval-after.jsonl", "eval-before.jsonl", "step-00000.jsonl", "step-00001.jsonl"]
    for name in names[2:]:
        rows = json_lines(run[0] / "completions" / name)
        assert len(rows) == 32  # two ranks, two micro-batches of eight
        assert set(Counter(row["prompt"] for row in rows).values()) == {8}  # whole groups


def test_the_ranks_share_the_held_out_prompts(run):
    summary = json.loads((run[0] / "summary.json").read_text())
    rows = json_lines(run[0] / "completions" / "eval-after.jsonl")
    assert summary["n"] == len(rows) == len({row["prompt"] for row in rows}) == 17
    assert summary["pass_at_1_after"] == sum(row["reward"] for row in rows) / 17
    assert read_metrics(run[0])[-1]["eval_pass_at_1"] == pytest.approx(summary["pass_at_1_after"])


def test_sharded_weights_are_saved_whole(run):
    trained, first = load_model(str(run[0] / "checkpoints" / "step-2")), load_model("recipes/quickstart/model")
    assert {name: p.shape for name, p in trained.named_parameters()} == {
        name: p.shape for name, p in first.named_parameters()
    }
    assert trained.lm_head.weight is trained.model.embed_tokens.weight


@pytest.mark.slow
def test_a_killed_rank_takes_the_others_down_with_a_message(start_looprl, tmp_path):
    flags = ("--zero_stage", 2, "--max_steps", 100000, "--control_every", 1, "--output_dir", tmp_path / "run")
    launcher = start_looprl("train", RECIPE, *TWO, *flags)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: launcher.poll() is not None or metrics.is_file())
    assert launcher.poll() is None, launcher.communicate()[1]
    ranks = ranks_of(launcher)
    assert sorted(ranks) == [0, 1]
    ranks[1].kill()
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "rank 1 ended with signal SIGKILL; the others were stopped" in errors
    assert not ranks[0].is_running()
    assert read_metrics(metrics)[0]["control/cosine_to_full"] > 0.99


@pytest.mark.slow
def test_no_rank_outlives_a_killed_launcher(start_looprl, tmp_path):
    launcher = start_looprl("train", RECIPE, *TWO, "--zero_stage", 2, "--output_dir", tmp_path / "run")
    wait_for(lambda: len(psutil.Process(launcher.pid).children()) == 2)
    ranks = list(ranks_of(launcher).values())
    launcher.kill()
    wait_for(lambda: not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks), 30)
    launcher.communicate()
    left = [rank.pid for rank in ranks if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]
    assert len(ranks) == 2 and left == []


@pytest.mark.slow
def test_ctrl_c_ends_every_rank_and_names_no_traceback(start_looprl, tmp_path):
    launcher = start_looprl("train", RECIPE, *TWO, "--zero_stage", 2, "--output_dir", tmp_path / "run")
    wait_for(lambda: launcher.poll() is not None or (tmp_path / "run" / "metrics.jsonl").is_file())
    ranks = list(ranks_of(launcher).values())
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert "interrupted; the run folder is" in errors and "Traceback" not in errors
    assert not any(rank.is_running() for rank in ranks)
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.slow
def test_an_error_of_every_rank_is_shown_once(start_looprl, tmp_path):
    flags = ("--zero_stage", 2, "--max_completion_length", 4000, "--output_dir", tmp_path / "run")
    launcher = start_looprl("train", RECIPE, *TWO, *flags)
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 2
    assert errors.count("looprl train: error:") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_ranks_that_share_an_engine_train_on_exact_replays(looprl, tmp_path):
    flags = ("--zero_stage", 2, "--max_steps", 2, "--vllm_tensor_parallel_size", 2, "--output_dir", tmp_path / "run")
    output = looprl("train", RECIPE, *TWO, *flags)
    assert "starting the rollout engine" in output
    assert all(row["replay/logprob_gap_max"] < 1e-5 for row in read_metrics(tmp_path / "run"))
    assert len(json_lines(tmp_path / "run" / "completions" / "step-00000.jsonl")) == 16
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["n"] == 17


LAUNCHERS = {
    "accelerate": ("accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1", "--multi_gpu", "-m"),
    "deepspeed": ("deepspeed.launcher.runner", "--num_gpus", "2", "--no_local_rank", "--module"),
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"),
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_other_launchers_start_the_ranks_too(launcher, tmp_path):
    command = [sys.executable, "-m", *LAUNCHERS[launcher], "looprl", "train", RECIPE, "--zero_stage", "2"]
    command += map(str, (*TWO[2:], "--max_steps", 1, "--output_dir", tmp_path / "run"))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(json_lines(tmp_path / "run" / "completions" / "step-00000.jsonl")) == 16  # of both ranks
