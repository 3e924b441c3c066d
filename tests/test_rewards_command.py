"""`looprl rewards try`: scores in row order, a table, and errors that name the reward."""

import json
from pathlib import Path

import pytest

from looprl.cli import main

DATA = Path(__file__).parent / "data"
GSM8K = [json.loads(line) for line in (DATA / "gsm8k_train_48.jsonl").read_text().splitlines()]
MBPP = [json.loads(line) for line in (DATA / "mbppplus_100.jsonl").read_text().splitlines()[:4]]
MINE = """
import math

def raises(prompts, completions, **kwargs):
    raise RuntimeError("no judge today")

def nan(prompts, completions, **kwargs):
    return [math.nan] * len(completions)

def short(prompts, completions, **kwargs):
    return [1.0]

def length(prompts, completions, **kwargs):
    return [len(text) if text else None for text in completions]

def prompted(prompts, completions, trainer_state, **kwargs):
    return [float(prompt.endswith("?\\n")) for prompt in prompts]

def needy(prompts, completions, tests, **kwargs):
    return [0.0] * len(completions)
"""


@pytest.fixture
def attempt(tmp_path, monkeypatch, capsys):
    """Try a reward on rows; returns the exit code, the scores and what was printed."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)

    def attempt(reward, rows):
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = main(["rewards", "try", reward, "--data", "rows.jsonl", "--json", "out.json"])
        scores = json.loads(Path("out.json").read_text())["scores"] if Path("out.json").exists() else None
        printed = capsys.readouterr()
        return code, scores, printed.out + printed.err

    return attempt


def with_completions(rows, *completions):
    return [{**row, "completion": completion} for row, completion in zip(rows, completions, strict=False)]


def test_gsm8k_rows_are_scored_in_their_order(attempt):
    golds = [row["answer"].rpartition("#### ")[2] for row in GSM8K[:3]]
    rows = with_completions(GSM8K, f"So it is {golds[0]}.", "I do not know", rf"\boxed{{{golds[2]}}}")
    rows.append({"question": "q?", "answer": "no number", "completion": "5"})
    code, scores, printed = attempt("rewards/gsm8k.py:accuracy", rows)
    assert (code, scores) == (0, [1.0, 0.0, 1.0, None])
    assert f"So it is {golds[0]}." in printed and "4 rows: mean 0.667 over 3; 1 cannot be judged (-)" in printed


def test_mbppplus_rows_are_scored_from_their_own_columns(attempt):
    right = [row["canonical_solution"] for row in MBPP]
    rows = with_completions(MBPP, right[0], "def f(: pass", f"```python\n{right[2]}```", right[0])
    assert attempt("rewards/mbppplus.py:all_tests_pass", rows)[:2] == (0, [1.0, 0.0, 1.0, 0.0])


def test_a_reward_of_ones_own_gets_prompts_and_numbers_of_any_size_out(attempt):
    rows = with_completions(GSM8K, "four", "")
    assert attempt("mine.py:length", rows)[:2] == (0, [4.0, None])
    assert attempt("mine.py:prompted", with_completions([{"prompt": "p?\n"}, {"prompt": "p"}], "a", "b"))[1] == [
        1.0,
        0.0,
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "raised RuntimeError: no judge today"),
        ("nan", "returned nan for completion 0"),
        ("short", "returned 1 rewards for 2 completions"),
        ("needy", "needs the column 'tests'"),
    ],
)
def test_a_broken_reward_is_an_error_that_names_it_and_leaves_no_scores(attempt, name, message):
    code, scores, printed = attempt(f"mine.py:{name}", with_completions(GSM8K, "1", "2"))
    assert (code, scores) == (2, None)
    assert f"looprl rewards: error: reward {name} in " in printed and message in printed


def test_rows_that_cannot_be_scored_are_refused(attempt):
    for rows, message in (
        (GSM8K[:1], "has no column 'completion'; its columns are question, answer, prompt"),
        ([{"question": "q", "completion": 5}], "row 0 (counting from 0) has int as completion"),
        ([{"completion": "c"}], "no column 'prompt'"),
    ):
        code, scores, printed = attempt("mine.py:length", rows)
        assert (code, scores) == (2, None) and message in printed
    assert main(["rewards", "try", "mine.py:length", "--data", "nowhere.jsonl"]) == 2
