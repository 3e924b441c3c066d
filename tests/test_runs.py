"""The run folder: never overwrites by accident, is readable at any moment, and is read back tolerantly."""

import json
import logging
import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import yaml

from looprl import runs
from looprl.errors import UserError
from looprl.runs import RunFolder, read_metrics


class Kind(Enum):
    GOOD = "good"


@dataclass
class Settings:
    seed: int = 3
    kind: Kind = Kind.GOOD
    where: Path = Path("a/b")
    sizes: tuple[int, ...] = (1, 2)
    hub_token: str | None = "secret"
    _internal: int = field(default=0)


@pytest.fixture
def finished_run(tmp_path) -> Path:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config({"seed": 1})
    folder.append_metrics({"step": 1, "reward": 0.5})
    folder.checkpoint_path(1).mkdir(parents=True)
    return folder.path


def test_new_folder_is_made_with_its_parents_and_is_the_latest(tmp_path):
    folder = RunFolder.create(tmp_path / "runs" / "quickstart")
    assert folder.path.is_dir()
    assert runs.latest_run_folder() == folder.path


def test_empty_folder_may_be_used(tmp_path):
    assert RunFolder.create(tmp_path).path == tmp_path


def test_folder_in_use_is_an_error_that_names_the_three_ways_out(finished_run):
    with pytest.raises(UserError) as caught:
        RunFolder.create(finished_run)
    assert all(flag in str(caught.value) for flag in ("--overwrite", "--output_dir"))
    assert read_metrics(finished_run) == [{"step": 1, "reward": 0.5}]


def test_file_in_the_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="is a file"):
        RunFolder.create(tmp_path / "run", overwrite=True)


def test_overwrite_replaces_a_run_folder(finished_run):
    RunFolder.create(finished_run, overwrite=True)
    assert list(finished_run.iterdir()) == []


def test_overwrite_does_not_follow_links_out_of_the_folder(finished_run, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("x")
    (finished_run / "link").symlink_to(precious)
    RunFolder.create(finished_run, overwrite=True)
    assert (precious / "data").read_text() == "x" and not (finished_run / "link").exists()


@pytest.mark.parametrize("extra", [None, ".git"])
def test_overwrite_refuses_what_is_not_a_run_folder(tmp_path, extra):
    (tmp_path / "thesis.tex").write_text("x")
    if extra:
        (tmp_path / "config.yaml").write_text("a: 1")
        (tmp_path / extra).mkdir()
    with pytest.raises(UserError, match="--overwrite refused"):
        RunFolder.create(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize("place", ["home", "working directory", "parent of it"])
def test_overwrite_refuses_home_and_working_directory_even_with_a_config(tmp_path, monkeypatch, place):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    (folder / "below").mkdir(parents=True)
    elsewhere.mkdir()
    (folder / "config.yaml").write_text("a: 1")
    monkeypatch.setenv("HOME", str(folder if place == "home" else elsewhere))
    monkeypatch.chdir({"home": elsewhere, "working directory": folder, "parent of it": folder / "below"}[place])
    with pytest.raises(UserError, match="--overwrite refused"):
        RunFolder.create(folder, overwrite=True)
    assert (folder / "config.yaml").exists() and (folder / "below").exists()


def test_resume_keeps_everything(finished_run):
    folder = RunFolder.create(finished_run, resume=True)
    folder.append_metrics({"step": 2})
    assert [row["step"] for row in read_metrics(finished_run)] == [1, 2]
    assert folder.checkpoint_path(1).is_dir()


def test_resume_after_a_kill_in_mid_line_goes_on_with_whole_lines(finished_run, caplog):
    with open(finished_run / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "rew')
    RunFolder.create(finished_run, resume=True).append_metrics({"step": 2, "reward": 1.0})
    assert "cut short" in caplog.text
    assert [row["step"] for row in read_metrics(finished_run)] == [1, 2]


def test_rewinding_leaves_what_was_written_up_to_the_step(finished_run):
    folder = RunFolder.create(finished_run, resume=True)
    folder.append_metrics({"step": 2, "text": "a\u2028b"})
    folder.append_metrics({"step": 3})
    folder.write_summary({"steps": 3})
    for name in ("step-00001", "step-00001-1", "step-00002", "step-00002-1", "step-00010", "eval-before"):
        folder.write_completions(name, [{"completion": name}])
    folder.rewind(2)
    assert read_metrics(finished_run) == [{"step": 1, "reward": 0.5}, {"step": 2, "text": "a\u2028b"}]
    # a step's rollouts are named by the steps that were done when they were drawn
    left = sorted(path.stem for path in (finished_run / "completions").iterdir())
    assert left == ["eval-before", "step-00001", "step-00001-1"]
    assert not (finished_run / "summary.json").exists()


def test_completions_are_read_back(tmp_path):
    folder = RunFolder.create(tmp_path)
    rows = [{"completion": "a\u2028\n", "reward": None}, {"completion": "", "reward": 1.0}]
    folder.write_completions("eval-before", rows)
    assert folder.read_completions("eval-before") == rows
    assert folder.read_completions("eval-after") is None


def test_resume_of_nothing_is_an_error(tmp_path):
    with pytest.raises(UserError, match="nothing to resume"):
        RunFolder.create(tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_overwrite_and_resume_exclude_each_other(finished_run):
    with pytest.raises(UserError, match="exclude each other"):
        RunFolder.create(finished_run, overwrite=True, resume=True)
    assert read_metrics(finished_run)


def test_config_is_plain_yaml_with_seed_and_versions(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.write_config({**vars(Settings()), "nested": Settings(), "rate": np.float64(0.5), "names": {"b", "a"}})
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (config["seed"], config["kind"], config["where"], config["sizes"]) == (3, "good", "a/b", [1, 2])
    assert config["nested"]["kind"] == "good" and "_internal" not in config["nested"]
    assert (config["rate"], config["names"]) == (0.5, ["a", "b"])
    assert {"python", "torch", "trl", "transformers", "datasets"} <= set(config["versions"])


def test_secrets_do_not_reach_the_config(tmp_path):
    RunFolder.create(tmp_path).write_config({"hub_token": "secret", "nested": Settings()})
    text = (tmp_path / "config.yaml").read_text()
    assert "secret" not in text and yaml.safe_load(text)["hub_token"] == "(hidden)"


def test_each_metrics_line_is_on_disk_at_once_with_null_for_what_is_not_finite(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.append_metrics({"step": 1, "loss": float("nan"), "gap": [float("inf"), np.float32(0.5)]})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": null, "gap": [null, 0.5]}\n'
    folder.append_metrics({"step": 2})
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_completions_round_trip_any_text(tmp_path):
    rows = [{"completion": "é \n \u2028 {x} \ud83d", "reward": 1.0}, {"completion": "", "reward": None}]
    path = RunFolder.create(tmp_path).write_completions("step-10", rows)
    assert path == tmp_path / "completions" / "step-10.jsonl"
    with open(path, encoding="utf-8") as file:
        assert [json.loads(line) for line in file] == rows
    assert "é" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".."])
def test_completions_stay_in_their_folder(tmp_path, name):
    with pytest.raises(ValueError, match="not a plain file name"):
        RunFolder.create(tmp_path).write_completions(name, [])


def test_summary_is_valid_json(tmp_path):
    RunFolder.create(tmp_path).write_summary({"pass_at_1_after": np.float64(0.75), "seconds": float("inf")})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"pass_at_1_after": 0.75, "seconds": None}


def test_interrupted_write_leaves_the_old_file_and_no_debris(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path)
    folder.write_summary({"n": 1})

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        folder.write_summary({"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text()) == {"n": 1}


def test_written_files_are_as_readable_as_any_other(tmp_path):
    RunFolder.create(tmp_path / "run").write_summary({})
    (tmp_path / "ordinary").write_text("")
    modes = [path.stat().st_mode for path in (tmp_path / "run" / "summary.json", tmp_path / "ordinary")]
    assert modes[0] == modes[1]


def test_checkpoint_path_is_named_by_step(tmp_path):
    assert RunFolder(tmp_path).checkpoint_path(20) == tmp_path / "checkpoints" / "step-20"


def test_truncated_last_line_is_left_out_with_a_warning(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    with caplog.at_level(logging.WARNING):
        assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    assert "metrics.jsonl" in caplog.text and "cut short" in caplog.text


@pytest.mark.parametrize("bad", ["oops", "3", '{"a": 1'])
def test_broken_line_before_the_end_is_an_error_with_its_number(tmp_path, bad):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match="line 2"):
        read_metrics(tmp_path)


def test_missing_metrics_are_an_error(tmp_path):
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        read_metrics(tmp_path)
