"""What a user gets wrong is said in one message, before anything is trained: what, where, what to do."""

import json

import pytest

from looprl.cli import main

QUICKSTART = "recipes/quickstart.yaml"


@pytest.fixture
def train(tmp_path, capsys):
    """Run `looprl train` and return what it says on stderr; it must fail as a user error."""

    def failing(*flags, recipe=QUICKSTART):
        arguments = [recipe] if recipe else []
        output = ["--output_dir", str(tmp_path / "run")] if "--output_dir" not in flags else []
        assert main(["train", *arguments, *output, *map(str, flags)]) == 2
        return capsys.readouterr().err

    return failing


def test_unknown_recipe_key_names_the_nearest(train, tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("neuman_steps: 4\n")
    message = train(recipe=str(recipe))
    assert "neuman_steps" in message and "neumann_steps" in message and "mine.yaml" in message


def test_value_of_the_wrong_type_names_key_and_value(train):
    message = train("--num_loops", "six")
    assert "num_loops" in message and "six" in message


def test_abbreviated_flag_is_refused(train):
    message = train("--neumann", "2")
    assert "--neumann" in message and "--neumann_steps" in message


def test_group_size_must_divide_the_batch(train):
    message = train("--num_generations", "7")
    assert "192" in message and "7" in message


def test_model_that_is_not_looped(train, tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    message = train("--model", tmp_path / "llama")
    assert "llama" in message and "not a looped model" in message and "looplm" in message


def test_missing_model(train, tmp_path):
    assert "no model at" in train("--model", tmp_path / "nothing")


def test_empty_dataset(train, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty" in train("--dataset", tmp_path / "empty.jsonl")


def test_missing_column_lists_those_that_exist(train, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"task": "1 + 1", "solution": "2"}) + "\n")
    message = train("--dataset", tmp_path / "rows.jsonl")
    assert "are task, solution" in message and "no column 'prompt'" in message


def test_column_that_the_reward_needs(train, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1 + 1", "gold": "2"}) + "\n")
    message = train("--dataset", tmp_path / "rows.jsonl")
    assert "'answer'" in message and "gold" in message


def test_prompt_longer_than_the_window(train, tmp_path):
    row = {"question": "word " * 1200, "answer": "#### 1"}
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "short", "answer": "#### 1"}) + "\n" + json.dumps(row))
    message = train("--dataset", tmp_path / "rows.jsonl")
    assert "row 1" in message and "1008" in message


@pytest.mark.parametrize(
    "flags", [("--top_p", "0.9"), ("--top_k", "20"), ("--repetition_penalty", "1.2"), ("--min_p", "0.1")]
)
def test_sampling_that_would_bias_the_ratio(train, flags):
    message = train(*flags)
    assert flags[0].lstrip("-") in message and "biased" in message


BROKEN = """
def raises(prompts, completions, **kwargs):
    raise RuntimeError("no judge today")

def nan(prompts, completions, **kwargs):
    return [float("nan")] * len(completions)

def short(prompts, completions, **kwargs):
    return [1.0]
"""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("raises", "raised RuntimeError: no judge today"),
        ("nan", "returned nan for completion 0"),
        ("short", "returned 1 rewards for"),
    ],
)
def test_broken_reward_stops_the_run_and_is_named(train, tmp_path, name, problem):
    (tmp_path / "mine.py").write_text(BROKEN)
    message = train("--reward", f"{tmp_path}/mine.py:{name}", "--eval_size", "16", "--dataset_size", "64")
    assert f"reward {name} in {tmp_path}/mine.py {problem}" in message


def test_reward_that_does_not_exist_lists_those_that_do(train):
    message = train("--reward", "rewards/arithmetic.py:acuracy")
    assert "accuracy" in message


def test_run_folder_that_exists_is_kept(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    message = train("--output_dir", tmp_path / "run")
    assert "--overwrite" in message and "--output_dir" in message
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "{}\n"


def test_a_run_that_cannot_start_leaves_the_run_that_it_would_replace(train, tmp_path):
    for name in ("config.yaml", "metrics.jsonl"):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_text("{}\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "word " * 1200, "answer": "#### 1"}) + "\n")
    message = train("--dataset", tmp_path / "rows.jsonl", "--overwrite")
    assert "row 0" in message
    assert {path.name: path.read_text() for path in (tmp_path / "run").iterdir()} == {
        "config.yaml": "{}\n",
        "metrics.jsonl": "{}\n",
    }


def test_overwrite_never_removes_a_folder_that_is_not_a_run(train, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    train("--output_dir", tmp_path / "thesis", "--overwrite")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_evaluating_on_what_was_trained_on(train, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
    message = train("--dataset", tmp_path / "rows.jsonl", "--eval_dataset", tmp_path / "rows.jsonl")
    assert "also trained on" in message


def test_without_a_recipe_model_and_reward_are_asked_for(train):
    assert "--model and --reward" in train(recipe=None)
