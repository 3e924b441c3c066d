"""inspect, eval, gradients and train on a folder of every published family, as a user would run them."""

import json
import math

import pytest
import torch
import yaml

from looprl.cli import main
from looprl.models import load_model
from looprl.runs import read_metrics
from tests.published import MODELS, save_published

QUICK = {"inspect": "ouro", "eval": "parcae", "gradients": "huginn", "train": "llama"}  # what the fast suite runs
FROM = ("penultimate", "endpoint")
TRAIN = ("--max_steps", "2", "--per_device_train_batch_size", "8", "--dataset_size", "32", "--eval_size", "8")


def families(command):
    """Every family, all but one of them marked slow."""
    return pytest.mark.parametrize(
        "folder",
        [name if name == QUICK[command] else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
        indirect=True,
    )


@pytest.fixture
def folder(request, tmp_path):
    """A model's folder named after its family."""
    return save_published(request.param, tmp_path / request.param)


@pytest.fixture
def run(tmp_path, capsys):
    """Run a command to its end; returns the run folder and what was printed."""

    def succeed(*arguments):
        assert main([*map(str, arguments), "--output_dir", str(tmp_path / "run")]) == 0
        return tmp_path / "run", " ".join(capsys.readouterr().out.split())

    return succeed


@families("inspect")
def test_inspect_gives_a_verdict(folder, run):
    out, printed = run(
        "inspect", folder, "--documents", 4, "--max_tokens", 24, "--most_neumann_steps", 2, "--most_loops", 5
    )
    found = json.loads((out / "inspect.json").read_text())
    config = load_model(str(folder)).config
    assert (found["num_loops"], found["kv_policy"]) == (config.num_loops, config.kv_policy)
    assert len(found["loops"]) == 5 and found["spectral_radius"]["max"] > 0
    assert all(math.isfinite(row["nll"]) for row in found["loops"])
    cases = {(row["estimator"], row["replay_from"], row["neumann_steps"]) for row in found["reuse"]}
    assert cases == {(name, at, k) for name in ("reuse", "recompute") for at in FROM for k in (0, 1, 2)}
    assert all(abs(row["cosine_to_full"]["all"]) <= 1 for row in found["reuse"])
    assert "Is terminal KV sharing safe?" in printed and "Train with estimator:" in printed


@families("eval")
def test_eval_measures_every_depth(folder, run):
    out, printed = run(
        "eval", folder, "--reward", "rewards/arithmetic.py:accuracy", "--eval_size", 8, "--k", 2,
        "--num_loops", 2, 3, "--max_completion_length", 8,
    )  # fmt: skip
    rows = json.loads((out / "eval.json").read_text())
    assert [(row["num_loops"], row["n"], row["k"]) for row in rows] == [(2, 8, 2), (3, 8, 2)]
    texts = [
        [json.loads(line)["completion"] for line in (out / f"completions/eval-R{loops}.jsonl").open()]
        for loops in (2, 3)
    ]
    assert [len(drawn) for drawn in texts] == [16, 16] and texts[0] != texts[1]
    assert "avg@2" in printed


@families("gradients")
def test_gradients_compares_every_estimator_on_real_rollouts(folder, run):
    out, _ = run(
        "gradients", "recipes/gradients.yaml", "--model", folder, "--num_loops", 3, "--neumann_steps", 0, 2,
        "--repeats", 1, "--random_advantages", "true", "--per_device_train_batch_size", 8, "--dataset_size", 16,
    )  # fmt: skip
    rows = json.loads((out / "gradients.json").read_text())
    reused = [row for row in rows if (row["estimator"], row["replay_from"]) == ("reuse", "penultimate")]
    assert {row["neumann_steps"] for row in reused} == {0, 2}
    assert all(row["logprob_gap_max"] < 1e-4 and -1 <= row["cosine_to_full"]["all"] < 0.9999 for row in reused)
    (full,) = (row for row in rows if row["estimator"] == "full_checkpointed")
    assert full["cosine_to_full"]["all"] == pytest.approx(1, abs=1e-6)


@families("train")
def test_train_replays_what_was_sampled_and_saves_the_published_format(folder, run):
    out, printed = run("train", "recipes/quickstart.yaml", "--model", folder, "--num_loops", 3, *TRAIN)
    rows = read_metrics(out)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["replay/logprob_gap_max"] < 1e-4 and math.isfinite(row["loss"]) for row in rows)
    assert ("not trained: model.early_exit_gate" in printed) == (folder.name == "ouro")
    saved = out / "checkpoints/step-2"
    trained, first = load_model(str(saved)), load_model(str(folder))
    assert type(trained) is type(first)
    assert {name: p.shape for name, p in trained.named_parameters()} == {
        name: p.shape for name, p in first.named_parameters()
    }
    assert yaml.safe_load((out / "config.yaml").read_text())["num_loops"] == 3


@pytest.mark.parametrize("folder", ["huginn"], indirect=True)
def test_train_in_the_precision_that_the_recipe_asks_for(folder, run):
    out, _ = run(
        "train", "recipes/quickstart.yaml", "--model", folder, "--num_loops", 3, *TRAIN, "--max_steps", 1,
        "--model_init_kwargs", '{"dtype": "bfloat16"}',
    )  # fmt: skip
    (row,) = read_metrics(out)
    model = load_model(str(out / "checkpoints/step-1"))
    assert str(model.dtype) == "torch.bfloat16" and math.isfinite(row["loss"])
    assert row["memory/parameters"] == 2 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
def test_what_was_planned_for_two_processes_is_what_they_hold(looprl, tmp_path):
    folder = save_published("parcae", tmp_path / "model", torch.bfloat16)
    flags = ("recipes/quickstart.yaml", "--model", folder, "--num_processes", 2, "--zero_stage", 2, *TRAIN)
    looprl("train", *flags, "--output_dir", tmp_path / "run")
    looprl("plan", *flags, "--json", tmp_path / "plan.json")
    planned = {each["name"]: each["device"] for each in json.loads((tmp_path / "plan.json").read_text())["held"]}
    row = read_metrics(tmp_path / "run")[0]
    assert row["memory/parameters"] == planned["weights"]
    assert row["memory/gradients"] == pytest.approx(planned["gradients"], rel=0.01)
    optimizer = planned["Adam's moments"] + planned["master weights"]
    assert row["memory/optimizer"] == pytest.approx(optimizer, rel=0.01)
    assert 0.5 < row["memory/states"] / planned["states of the rollout"] <= 1  # prompts and completions fall short
