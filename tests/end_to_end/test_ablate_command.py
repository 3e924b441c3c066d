"""`looprl ablate` end to end: it trains every arm, keeps what is finished, and survives being killed."""

import json
import time

import pytest
import yaml

from looprl.cli import main
from looprl.runs import read_metrics

SMALL = {
    **{"max_steps": 2, "per_device_train_batch_size": 16, "eval_size": 16, "dataset_size": 64, "eval_every": 1},
    **{"transfer_dataset": "arithmetic", "transfer_task_options": {"num_steps": 1}, "transfer_size": 8},
}
ARMS = {"full": {"estimator": "full"}, "reuse": {"neumann_steps": 2}}


@pytest.fixture
def recipe(tmp_path):
    """A recipe file of two arms on one seed."""
    file = tmp_path / "small.yaml"
    content = {"recipe": "recipes/quickstart.yaml", "arms": ARMS, "seeds": [0], "overrides": SMALL}
    file.write_text(yaml.safe_dump(content))
    return file


def files(folder):
    """Every run's files with when each was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/seed-*/**/*") if path.is_file()}


def ablate(recipe, folder, *flags):
    return main(["ablate", str(recipe), "--output_dir", str(folder), *flags])


def test_arms_are_trained_compared_and_kept(recipe, tmp_path, capsys):
    folder = tmp_path / "out"
    assert ablate(recipe, folder) == 0
    printed = capsys.readouterr().out
    assert "2 arms x 1 seeds" in printed and "[1/2] full, seed 0: pass@1 " in printed
    assert "[2/2] reuse, seed 0: pass@1 " in printed and "speed-up" in printed and "transfer" in printed
    full, reuse = json.loads((folder / "ablation.json").read_text())
    assert (full["settings"]["estimator"], reuse["settings"]["neumann_steps"]) == ("full", 2)
    assert full["pass_at_1_before"] == reuse["pass_at_1_before"]
    for row in (full, reuse):
        (run,) = row["runs"]
        summary = json.loads((folder / row["arm"] / "seed-0" / "summary.json").read_text())
        assert run["pass_at_1_after"] == summary["pass_at_1_after"] and run["transfer_n"] == 8
        second = read_metrics(folder / row["arm"] / "seed-0")[1]
        assert run["update_seconds"] == pytest.approx(second["time/scoring"] + second["time/backward"])
        assert [step for step, _ in run["pass_rates"]] == [0, 1, 2]
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in ("pass_at_1.png", "differences.png"))
    assert (folder / "report.html").read_text().count("data:image/png") == 4

    before = files(folder)
    assert ablate(recipe, folder) == 0
    assert "2 of 2 runs are there already" in capsys.readouterr().out
    assert files(folder) == before

    # more steps would mix runs that differ
    assert ablate(recipe, folder, "--overrides", json.dumps(SMALL | {"max_steps": 3})) == 2
    message = capsys.readouterr().err
    assert "max_steps: 2" in message and "max_steps: 3" in message and "--overwrite" in message
    assert files(folder) == before


def test_a_folder_of_something_else_is_left_alone(recipe, tmp_path, capsys):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("years of work")
    for flags, message in (((), "not the folder of an ablation"), (("--overwrite",), "--overwrite refused")):
        assert ablate(recipe, folder, *flags) == 2
        assert message in capsys.readouterr().err
        assert [path.read_text() for path in folder.iterdir()] == ["years of work"]


def test_a_typo_in_the_last_arm_stops_it_before_anything_is_made(recipe, tmp_path, capsys):
    arms = ARMS | {"typo": {"estimator": "truncted"}}
    assert ablate(recipe, tmp_path / "out", "--arms", json.dumps(arms)) == 2
    message = capsys.readouterr().err
    assert "arm 'typo'" in message and "truncted" in message and "truncated" in message
    assert not (tmp_path / "out").exists()


def test_a_second_ablation_in_the_same_folder_is_refused(recipe, tmp_path, capsys, monkeypatch):
    import fcntl
    import os

    monkeypatch.setattr("looprl.commands.ablate._SECONDS_FOR_LOCK", 0)
    (tmp_path / "out").mkdir()
    handle = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert ablate(recipe, tmp_path / "out") == 2
    os.close(handle)
    assert "another looprl ablate is at work" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_run_that_fails_is_named_with_the_end_of_its_log(recipe, tmp_path, capsys):
    arms = {"full": {"model": str(tmp_path / "nothing")}}
    assert ablate(recipe, tmp_path / "out", "--arms", json.dumps(arms)) == 2
    message = capsys.readouterr().err
    assert "arm 'full', seed 0 failed with code 2" in message and "no model at" in message
    assert "no model at" in (tmp_path / "out" / "full" / "seed-0.log").read_text()


def test_a_mistake_in_one_arm_costs_no_finished_run(recipe, tmp_path, capsys):
    """An arm that has no finished run may change; one that has may not. Its finished run is kept."""
    done = tmp_path / "out" / "full" / "seed-0"
    assert ablate(recipe, tmp_path / "out", "--arms", json.dumps({"full": {"model": str(tmp_path / "nothing")}})) == 2
    done.mkdir(parents=True, exist_ok=True)
    (done / "summary.json").write_text("{}")
    capsys.readouterr()
    assert ablate(recipe, tmp_path / "out", "--arms", json.dumps({"full": {"model": str(tmp_path / "other")}})) == 2
    assert "has runs of arm 'full' with model" in capsys.readouterr().err
    (done / "summary.json").unlink()
    assert ablate(recipe, tmp_path / "out", "--arms", json.dumps({"full": {"model": str(tmp_path / "other")}})) == 2
    assert "no model at" in capsys.readouterr().err


def test_a_training_recipe_is_what_the_default_arms_share(tmp_path, capsys):
    flags = ["--overrides", json.dumps({"max_steps": 0, "typo": 1}), "--output_dir", str(tmp_path / "out")]
    assert main(["ablate", "recipes/quickstart.yaml", *flags]) == 2
    assert "arm 'full': unknown key 'typo'" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_and_started_again_it_keeps_finished_runs_and_redoes_the_half_done_one(
    start_looprl, looprl, recipe, tmp_path
):
    folder = tmp_path / "out"
    command = ("ablate", recipe, "--seeds", 0, 1, "--output_dir", folder)
    overrides = ("--overrides", json.dumps(SMALL | {"max_steps": 6}))
    process = start_looprl(*command, *overrides)
    half_done = folder / "reuse" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not half_done.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert (folder / "full" / "seed-0" / "summary.json").exists()
    assert not (folder / "reuse" / "seed-0" / "summary.json").exists()
    kept = {path: when for path, when in files(folder).items() if path.is_relative_to(folder / "full")}

    printed = looprl(*command, *overrides)
    assert "1 of 4 runs are there already" in printed
    assert "[1/4]" not in printed and "[2/4] reuse, seed 0" in printed and "[4/4] reuse, seed 1" in printed
    assert {path: when for path, when in files(folder).items() if path in kept} == kept
    assert [row["step"] for row in read_metrics(half_done)] == [1, 2, 3, 4, 5, 6]
    full, reuse = json.loads((folder / "ablation.json").read_text())
    assert [run["seed"] for run in full["runs"]] == [run["seed"] for run in reuse["runs"]] == [0, 1]
    differences = [
        mine["pass_at_1_after"] - other["pass_at_1_after"]
        for mine, other in zip(reuse["runs"], full["runs"], strict=True)
    ]
    assert reuse["difference"]["mean"] == pytest.approx(sum(differences) / 2)
    assert len(reuse["difference"]["interval"]) == 2
