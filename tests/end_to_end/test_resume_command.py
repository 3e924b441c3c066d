"""`looprl train --resume` and `looprl export`: a run that is killed again and again ends as one that never was."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from looprl.checkpoints import _write_manifest
from looprl.cli import main
from looprl.models import load_model
from looprl.runs import read_metrics
from tests.end_to_end.conftest import ENVIRONMENT, ROOT
from tests.end_to_end.killed_run import MOMENTS
from tests.run_metrics import without_clocks

RUN = ("train", "recipes/quickstart.yaml", "--per_device_train_batch_size", 16, "--eval_size", 8, "--dataset_size", 16)


def run_until(sent, moment, step, folder, *flags):
    """Run until the process sends itself the signal, and return its exit code and messages."""
    script = ("tests/end_to_end/killed_run.py", sent.name, moment, step)
    command = [sys.executable, *map(str, (*script, *RUN, "--output_dir", folder, *flags))]
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


def kill_at(moment, step, folder, *flags):
    code, messages = run_until(signal.SIGKILL, moment, step, folder, *flags)
    assert code == -signal.SIGKILL, messages[-2000:]


def weights(folder, step):
    return load_file(folder / "checkpoints" / f"step-{step}" / "model.safetensors")


def metrics(folder):
    rows = read_metrics(folder)
    return [without_clocks(row) for row in rows]


def completions(folder):
    return {path.name: path.read_text() for path in (folder / "completions").iterdir()}


def assert_same_run(first, second, steps):
    ours, theirs = weights(first, steps), weights(second, steps)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [row["step"] for row in read_metrics(second)] == list(range(1, steps + 1))
    assert metrics(first) == metrics(second)
    assert completions(first) == completions(second)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (first, second)]
    assert all(summaries[0][key] == summaries[1][key] for key in summaries[0] if key != "seconds")


@pytest.fixture(scope="module")
def whole_run(looprl, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    looprl(*RUN, "--output_dir", folder, "--max_steps", 6, "--save_steps", 2)
    return folder


@pytest.fixture(scope="module")
def killed_run(looprl, tmp_path_factory):
    """Told to end, killed three times, a checkpoint damaged, and gone on with each time, at last for one more step."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    flags = ("--max_steps", 5, "--save_steps", 2)
    code, messages = run_until(signal.SIGTERM, "rollout", 0, folder, *flags)
    assert code == 143 and "Traceback" not in messages
    assert "after step 1; go on with --resume" in messages and str(folder) in messages.replace("\n", "")
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-1"]
    assert not (folder / "summary.json").exists() and (folder / "report.html").exists()
    kill_at("scoring", 1, folder, *flags, "--resume")
    kill_at("backward", 4, folder, *flags, "--resume")
    with open(folder / "checkpoints" / "step-4" / "optimizer.pt", "r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))
    kill_at("half a file", 3, folder, *flags, "--resume")
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == [".partial", "step-2", "step-4.aside"]
    looprl(*RUN, "--output_dir", folder, "--max_steps", 6, "--save_steps", 2, "--resume")
    return folder


def test_a_run_that_is_killed_three_times_ends_as_one_that_never_was(whole_run, killed_run):
    assert_same_run(whole_run, killed_run, 6)
    assert sorted(path.name for path in (killed_run / "checkpoints").iterdir()) == ["step-4", "step-4.aside", "step-6"]


def test_another_learning_rate_is_refused_and_costs_nothing(whole_run, start_looprl):
    before = {path: path.stat().st_mtime_ns for path in whole_run.rglob("*")}
    flags = ("--max_steps", 6, "--learning_rate", 1, "--resume")
    process = start_looprl(*RUN, "--output_dir", whole_run, *flags)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "learning_rate (was 0.0003, is 1.0)" in error and "Traceback" not in error
    assert {path: path.stat().st_mtime_ns for path in whole_run.rglob("*")} == before


def test_a_run_that_has_only_weights_is_refused_and_loses_nothing(whole_run, start_looprl, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole_run, folder)
    for states in folder.glob("checkpoints/step-*/loop_state-*"):
        states.unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        (checkpoint / "manifest.json").unlink()
        _write_manifest(checkpoint)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    process = start_looprl(*RUN, "--output_dir", folder, "--max_steps", 9, "--save_steps", 2, "--resume")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2 and "holds weights only" in error and "Traceback" not in error
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_export_gives_a_plain_transformers_folder(whole_run, tmp_path, capsys):
    for name, step, flags in (("last", 6, ()), ("fourth", 4, ("--step", "4"))):
        target = tmp_path / name
        assert main(["export", str(whole_run), str(target), *flags]) == 0
        assert f"step-{step}" in capsys.readouterr().out
        exported, trained = load_model(str(target)).state_dict(), weights(whole_run, step)
        assert all(torch.equal(exported[key], trained[key]) for key in trained)
        assert AutoTokenizer.from_pretrained(target)("Tom has 12")["input_ids"]
        files = {path.name for path in target.iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
        assert not any(part in file for file in files for part in ("optimizer", "state", "rng", "manifest", "args"))
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("RUN", "USED"), "exists"),
        (("RUN", "new", "--step", "5"), "no checkpoint of step 5; it has those of 4, 6"),
        (("USED", "new"), "no checkpoints to export"),
    ],
)
def test_what_cannot_be_exported_is_said_and_nothing_is_written(whole_run, tmp_path, capsys, arguments, message):
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine").write_text("x")
    named = {"RUN": str(whole_run), "USED": str(used), "new": str(tmp_path / "new")}
    assert main(["export", *(named.get(argument, argument) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["used", "mine"]


def kill_again_and_again(moments, whole, killed, kill, start):
    """Kill a run of 30 steps at each moment, None being any, and go on with it each time, at the end without a kill."""
    choice, flags = random.Random(0), ("--max_steps", 30, "--save_steps", 1)
    choice.shuffle(moments)
    for moment in moments:
        resume = ("--resume",) if killed.exists() else ()
        done = read_metrics(killed)[-1]["step"] if (killed / "metrics.jsonl").exists() else 0
        assert done < 30
        if moment is not None:
            kill(moment, min(done + choice.randint(0, 1), 29), killed, *flags, *resume)
            continue
        process = start("--output_dir", killed, *flags, *resume)
        while not ((killed / "metrics.jsonl").exists() and read_metrics(killed)[-1]["step"] > done):
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(choice.uniform(0, 1))
        process.kill()
        process.communicate()
    start("--output_dir", whole, *flags).communicate()
    start("--output_dir", killed, *flags, "--resume").communicate()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_of_30_steps_that_is_killed_20_times_ends_as_one_that_never_was(start_looprl, tmp_path):
    """At every moment twice, at random steps, and four times whenever a random delay is over."""
    moments = [*MOMENTS, *MOMENTS, *[None] * 4]
    assert len(moments) == 20
    start = partial(start_looprl, *RUN)
    kill_again_and_again(moments, tmp_path / "whole", tmp_path / "killed", kill_at, start)
    assert_same_run(tmp_path / "whole", tmp_path / "killed", 30)


def kill_a_rank_at(stage, moment, step, folder, *flags):
    """As `kill_at`, in two ranks, of which one sends itself the signal; the launcher ends the other."""
    script = ("tests/end_to_end/killed_run.py", "SIGKILL", moment, step, *RUN, *of_two(stage), "--output_dir", folder)
    call = "import sys; from looprl.launch import run_ranks; sys.exit(run_ranks(sys.argv[1:], 2))"
    command = [sys.executable, "-c", call, *map(str, (*script, *flags))]
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "ended with signal SIGKILL; the others were stopped" in done.stderr, done.stderr


def of_two(stage):
    return ("--zero_stage", stage, "--per_device_train_batch_size", 8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", [2, 3])
def test_two_ranks_that_are_killed_5_times_in_30_steps_end_as_if_they_never_were(stage, start_looprl, tmp_path):
    """Four times one rank kills itself, wherever it is; once the launcher is killed."""
    moments = {2: ["rollout", "scoring", "half a file", "optimizer", None], 3: [*MOMENTS[3:4], *MOMENTS[5:], None]}
    start = partial(start_looprl, *RUN, *of_two(stage), "--num_processes", 2)
    kill = partial(kill_a_rank_at, stage)
    kill_again_and_again(moments[stage], tmp_path / "whole", tmp_path / "killed", kill, start)
    assert_same_run(tmp_path / "whole", tmp_path / "killed", 30)


@pytest.mark.slow
def test_sigterm_has_every_rank_stop_at_a_checkpoint_and_the_run_goes_on(looprl, start_looprl, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    flags = (*RUN, *of_two(3), "--num_processes", 2, "--max_steps", 60, "--save_steps", 100)
    process = start_looprl(*flags, "--output_dir", stopped)
    while not (stopped / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 143 and "go on with --resume" in messages and "Traceback" not in messages
    (checkpoint,) = (stopped / "checkpoints").iterdir()
    assert 1 <= int(checkpoint.name.removeprefix("step-")) < 60
    looprl(*flags, "--output_dir", stopped, "--resume")
    looprl(*flags, "--output_dir", whole)
    assert_same_run(whole, stopped, 60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_go_on_from_the_newest_whole_checkpoint_and_only_as_they_were(looprl, start_looprl, tmp_path):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    pair = (*RUN, *of_two(2), "--num_processes", 2, "--save_steps", 2)
    looprl(*pair, "--output_dir", whole, "--max_steps", 4)
    looprl(*pair, "--output_dir", damaged, "--max_steps", 4)

    def refused(*flags):
        process = start_looprl(*RUN, "--output_dir", damaged, "--save_steps", 2, "--max_steps", 4, "--resume", *flags)
        _, messages = process.communicate(timeout=300)
        assert process.returncode == 2 and "Traceback" not in messages
        return messages

    assert "zero_stage (was 2, is 3)" in refused(*of_two(3), "--num_processes", 2)
    assert "step-4 has the states of 2 process(es), so 1 cannot go on" in refused(*of_two(2), "--num_processes", 1)
    (part, *_) = sorted((damaged / "checkpoints/step-4").glob("global_step*/*optim_states.pt"))
    with open(part, "r+b") as file:
        file.truncate(part.stat().st_size - 1)
    looprl(*pair, "--output_dir", damaged, "--max_steps", 4, "--resume")
    assert (damaged / "checkpoints/step-4.aside").is_dir()
    assert_same_run(whole, damaged, 4)
