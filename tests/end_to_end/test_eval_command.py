"""`looprl eval` on the shipped model: one call for several depths, the same numbers again, and after a kill too."""

import base64
import json
import shutil
import time
from contextlib import redirect_stdout
from io import StringIO

import pytest

from looprl.cli import main

SIZE, K, LOOPS = 20, 4, (1, 6)
SETTINGS = ("--eval_size", SIZE, "--k", K, "--batch_size", 32)
RESULTS = (
    "eval.json",
    "problems.jsonl",
    "eval.png",
    "config.yaml",
    "completions/eval-R1.jsonl",
    "completions/eval-R6.jsonl",
)


def arguments(folder, *more):
    return ["eval", "recipes/quickstart.yaml", "--output_dir", folder, *SETTINGS, "--num_loops", *LOOPS, *more]


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def contents(folder):
    """What the run left, the path of the run folder itself aside."""
    return {name: (folder / name).read_bytes().replace(str(folder).encode(), b"") for name in RESULTS}


def run(*given):
    return main([str(each) for each in given])


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval") / "run"
    with redirect_stdout(StringIO()) as output:
        assert run(*arguments(folder)) == 0
    return folder, output.getvalue()


def test_every_depth_has_a_row_that_follows_from_its_completions(evaluated):
    folder, _ = evaluated
    rows = json.loads((folder / "eval.json").read_text())
    assert [(row["task"], row["num_loops"], row["k"], row["n"]) for row in rows] == [
        ("arithmetic", num_loops, K, SIZE) for num_loops in LOOPS
    ]
    for row in rows:
        completions = read(folder, f"completions/eval-R{row['num_loops']}.jsonl")
        rewards = [completion["reward"] for completion in completions]
        assert len(rewards) == SIZE * K
        assert row["avg_at_k"] == pytest.approx(sum(rewards) / len(rewards)) and 0 < row["avg_at_k"] < 1
        solved = [any(rewards[start : start + K]) for start in range(0, len(rewards), K)]
        assert row["pass_at_k"] == pytest.approx(sum(solved) / SIZE)
        assert row["ci95"][0] < row["avg_at_k"] < row["ci95"][1]
        assert not any("exit" in key for key in [*row, *completions[0]])  # the model has no gate
        assert row["tokens"] == pytest.approx(sum(each["tokens"] for each in completions) / len(completions))


def test_completions_stand_by_problem_and_end_at_the_answer_that_votes(evaluated):
    folder, _ = evaluated
    completions = read(folder, "completions/eval-R6.jsonl")
    problems = [row for row in read(folder, "problems.jsonl") if row["num_loops"] == 6]
    assert [(row["problem"], row["sample"]) for row in completions] == [(p, s) for p in range(SIZE) for s in range(K)]
    for row in completions:
        problem = problems[row["problem"]]
        assert row["prompt"] == problem["prompt"]
        assert (row["final_answer"] == problem["answer"].partition("#### ")[2]) == (row["reward"] == 1)
    assert sum(sum(problem["votes"].values()) for problem in problems) == sum(
        row["final_answer"] is not None for row in completions
    )


def test_table_figure_and_report_show_what_was_measured(evaluated):
    folder, output = evaluated
    page = (folder / "report.html").read_text()
    assert base64.b64encode((folder / "eval.png").read_bytes()).decode() in page
    for row in json.loads((folder / "eval.json").read_text()):
        for text in (output, page):
            assert f"R = {row['num_loops']}" in text and f"{row['avg_at_k']:.3f}" in text
    assert "majority@4" in output and "exit" not in output and str(folder) in output


def test_a_killed_evaluation_goes_on_to_the_very_same_files(evaluated, start_looprl, tmp_path):
    whole, _ = evaluated
    folder = tmp_path / "run"
    process = start_looprl(*arguments(folder))
    first = folder / "completions" / "eval-R1.jsonl"
    deadline = time.monotonic() + 300
    while not (first.is_file() and first.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None
    process.kill()
    process.communicate()
    # as if the kill had come in the middle of a line of the second chunk, whenever it really came
    chunk = 32 // K * K
    lines = (whole / "completions" / "eval-R1.jsonl").read_text().splitlines(keepends=True)
    assert first.read_text().startswith("".join(lines[:chunk]))
    first.write_text("".join(lines[: chunk + 3]) + lines[chunk + 3][:40])
    (folder / "completions" / "eval-R6.jsonl").unlink(missing_ok=True)
    assert run(*arguments(folder, "--resume")) == 0
    assert contents(folder) == contents(whole)


@pytest.fixture
def copied(evaluated, tmp_path):
    return shutil.copytree(evaluated[0], tmp_path / "copy")


def test_a_finished_evaluation_is_resumed_without_an_engine(copied, monkeypatch):
    before = {name: (copied / name).read_bytes() for name in RESULTS if name != "config.yaml"}
    for name in ("eval.json", "eval.png", "problems.jsonl", "report.html"):
        (copied / name).unlink()
    monkeypatch.setattr("looprl.commands.eval.RolloutEngine", None)
    assert run(*arguments(copied, "--resume")) == 0
    assert {name: (copied / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (["--seed", 1], "seed"),
        (["--k", 2], "k"),
        (["--temperature", 0.5], "temperature"),
        (["--eval_size", 21], "eval_size"),
        (["--model", "tests/data/twins/converging"], "weights"),
    ],
)
def test_results_of_other_settings_are_never_mixed(copied, capsys, setting, named):
    before = contents(copied)
    assert run(*arguments(copied, *setting, "--resume")) == 2
    message = capsys.readouterr().err
    assert f"was evaluated with {named}:" in message and "--overwrite" in message
    assert contents(copied) == before


def test_completions_of_other_prompts_are_never_mixed_in(copied, capsys):
    file = copied / "completions" / "eval-R6.jsonl"
    rows = read(copied, "completions/eval-R6.jsonl")
    rows[5]["prompt"] = "another"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(*arguments(copied, "--resume")) == 2
    assert "eval-R6.jsonl, line 6" in capsys.readouterr().err


def test_a_model_folder_is_evaluated_greedily_on_a_file_and_a_second_task_each_with_its_reward(tmp_path, capsys):
    rows = [
        {"prompt": f"Tom has {n} apples. Tom buys 3. How many apples does Tom have?\n", "gold": n} for n in range(5)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward = tmp_path / "mine.py"
    reward.write_text(
        "def score(prompts, completions, gold, **kwargs):\n"
        "    return [None if n == 0 else float('####' in text) for text, n in zip(completions, gold)]\n"
    )
    settings = ["--eval_dataset", tmp_path / "rows.jsonl", "--reward", f"{reward}:score", "--temperature", 0, "--k", 1]
    settings += ["--transfer_dataset", "arithmetic", "--transfer_size", 6, "--transfer_max_completion_length", 12]
    settings += ["--transfer_reward", "rewards/arithmetic.py:accuracy", "--max_completion_length", 16]
    assert run("eval", "recipes/quickstart/model", *settings, "--output_dir", tmp_path / "run") == 0
    output = capsys.readouterr().out
    own, second = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert (own["task"], second["task"]) == (str(tmp_path / "rows.jsonl"), "arithmetic (transfer)")
    assert (own["num_loops"], own["n"], own["unjudged"], own["majority_at_k"]) == (6, 4, 1, None)
    assert (second["num_loops"], second["n"], second["majority_at_k"]) == (6, 6, second["avg_at_k"])
    assert max(row["tokens"] for row in read(tmp_path / "run", "completions/transfer-R6.jsonl")) <= 12
    assert "no final_answer(completion)" in output and "1 completions could not be judged" in output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--num_loops", "0"], "num_loops"),
        (["--num_loops", "6", "-2"], "num_loops"),
        (["--k", "0"], "k and batch_size must be at least 1, got 0"),
        (["--batch_size", "0"], "batch_size"),
        (["--temperature", "0"], "set k to 1"),
        (["--temperature", "-1"], "temperature"),
        (["--model", "gone"], "no model at 'gone'"),
        (["--model", "gone", "--resume"], "nothing to resume"),
        (["--dataset", "tests/data/gsm8k_train_48.jsonl"], "--eval_dataset"),
        (["--eval_dataset", "tests/data/gsm8k_train_48.jsonl", "--max_completion_length", "1000"], "evaluation prompt"),
        (["--reward", "rewards/gsm8k.py:acuracy"], "accuracy"),
        (["--exit_gate", "true"], "exit_gate needs a model with an exit gate; LoopLM"),
        (["--exit_thresholds", "0.5"], "exit_thresholds needs a model with an exit gate; LoopLM"),
        (["--exit_thresholds", "0.5", "1.5"], "exit_thresholds are probabilities above 0, up to 1"),
        (["--exit_thresholds", "0.5", "--exit_gate", "false"], "leave exit_gate out"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_written(settings, message, tmp_path, capsys):
    assert run("eval", "recipes/quickstart.yaml", "--output_dir", tmp_path / "run", *settings) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_model_folder_alone_says_that_a_reward_is_needed(tmp_path, capsys):
    assert run("eval", "recipes/quickstart/model", "--output_dir", tmp_path / "run") == 2
    assert "--reward" in capsys.readouterr().err
