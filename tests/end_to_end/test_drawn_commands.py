"""The commands on a model whose loops start from drawn states."""

import json

import pytest
import yaml

from looprl.cli import main
from looprl.gradients import PRESETS
from tests.published import save_published

SMALL = ("--reward", "rewards/arithmetic.py:accuracy", "--initial_state", "drawn", "--max_completion_length", 8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a random Huginn with per-loop KV, under which every estimator's log-probs are the sampler's."""
    folder = tmp_path_factory.mktemp("published") / "model"
    return save_published("huginn", folder, num_loops=3, kv_policy="per_loop")


def run(*arguments):
    return main([str(each) for each in arguments])


def evaluate(model, folder, *more):
    """The files of an evaluation by name."""
    assert run("eval", model, *SMALL, "--eval_size", 6, "--k", 2, "--output_dir", folder, *more) == 0
    return {name: (folder / name).read_text() for name in ("completions/eval-R3.jsonl", "config.yaml")}


def test_an_evaluation_repeats_and_its_settings_say_where_the_loops_start(model, tmp_path, capsys):
    first, again = (evaluate(model, tmp_path / name)["completions/eval-R3.jsonl"] for name in ("first", "again"))
    assert first == again
    config = yaml.safe_load((tmp_path / "first/config.yaml").read_text())
    assert (config["initial_state"], config["seed"]) == ("drawn", 42)
    from_zero = evaluate(model, tmp_path / "zero", "--initial_state", "zero")["completions/eval-R3.jsonl"]
    assert from_zero != first
    capsys.readouterr()
    resumed = ["--output_dir", tmp_path / "first", "--resume", "--initial_state", "zero"]
    assert run("eval", model, *SMALL, "--eval_size", 6, "--k", 2, *resumed) == 2
    assert "was evaluated with initial_state: 'drawn', but this is initial_state: 'zero'" in capsys.readouterr().err


@pytest.mark.slow
def test_gradients_start_from_the_states_of_the_rollout(model, tmp_path):
    settings = ["--model", model, "--per_device_train_batch_size", 8, "--num_generations", 4, "--repeats", 1]
    settings += ["--neumann_steps", 2, "--random_advantages", "true", "--output_dir", tmp_path / "run"]
    assert run("gradients", "recipes/gradients.yaml", *SMALL, *settings) == 0
    rows = json.loads((tmp_path / "run/gradients.json").read_text())
    exact = [row for row in rows if row["replay_from"] != "endpoint"]
    assert {row["estimator"] for row in exact} == set(PRESETS)
    assert all(row["logprob_gap_max"] < 1e-5 for row in exact)


@pytest.mark.parametrize("command", ["train", "eval", "gradients"])
def test_a_family_that_draws_no_states_is_refused_and_nothing_is_left(command, tmp_path, capsys):
    recipe = "recipes/gradients.yaml" if command == "gradients" else "recipes/quickstart.yaml"
    assert run(command, recipe, "--initial_state", "drawn", "--output_dir", tmp_path / "run") == 2
    assert "looplm publishes no distribution of initial states: use initial_state: zero" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
