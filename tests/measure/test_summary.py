"""The end of a run, as printed: readable at 80 columns and in a file, whatever was sampled."""

import io
import re

import pytest
from rich.console import Console

from looprl.measure.summary import print_summary, time_table

ROWS = [
    {"step": 1, "time/rollout": 2.0, "time/backward": 1.0, "reward": 0.5},
    {"step": 2, "time/rollout": 4.0, "time/backward": 1.0, "time/sync": None},
]
SUMMARY = {"pass_at_1_before": 0.3125, "pass_at_1_after": 0.8125, "n": 256, "steps": 80, "seconds": 123.4}
SAMPLE = {"prompt": "2 + 3?", "answer": "5", "before": "#### 4", "after": "2 + 3 = 5\n#### 5"}


def printed(summary=SUMMARY, rows=ROWS, samples=(SAMPLE,), folder="runs/quickstart", **options) -> str:
    stream = io.StringIO()
    print_summary(Console(file=stream, **options), summary, rows, samples, folder)
    return stream.getvalue()


def table_text(rows) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80).print(time_table(rows))
    return stream.getvalue()


def test_time_table_gives_total_and_share_per_phase_longest_first():
    text = table_text(ROWS)
    assert re.search(r"rollout +\| +6\.0 +\| +75%", text)
    assert re.search(r"backward +\| +2\.0 +\| +25%", text)
    assert text.index("rollout") < text.index("backward")
    assert "sync" not in text and "reward" not in text


def test_time_table_of_phases_that_took_no_time_has_no_share():
    assert re.search(r"rollout +\| +0\.0 +\| +- ", table_text([{"time/rollout": 0.0}]))


def test_summary_states_the_result_and_the_run_folder():
    text = printed()
    assert "pass@1 0.312 -> 0.812 on 256 held-out prompts" in text
    assert "80 steps in 123 s" in text
    assert "run folder: runs/quickstart\n" in text
    assert "where the time went" in text


def test_unmeasured_pass_rate_is_said_and_no_time_table_is_shown_without_times():
    text = printed({**SUMMARY, "pass_at_1_before": None, "pass_at_1_after": None}, rows=[{"step": 1}])
    assert "pass@1 was not measured" in text and "->" not in text
    assert "pass@1 not measured -> 0.812" in printed({**SUMMARY, "pass_at_1_before": None})
    assert "where the time went" not in text


def test_three_samples_are_shown_before_and_after_side_by_side():
    samples = [{**SAMPLE, "prompt": f"question {number}"} for number in range(5)]
    text = printed(samples=samples)
    assert [f"question {number}" in text for number in range(5)] == [True, True, True, False, False]
    assert re.search(r"\| #### 4 +\| 2 \+ 3 = 5 +\|\n\| +\| #### 5 +\|", text)
    assert text.count("answer: 5") == 3


def test_piped_output_is_plain_and_at_most_80_columns():
    long = {**SAMPLE, "prompt": "why " * 60, "before": "x" * 300, "after": "word " * 60}
    text = printed(samples=[long])
    assert text.isascii() and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_brackets_and_control_characters_in_samples_are_shown_literally():
    nasty = {**SAMPLE, "before": "[red]a[/red] [/b] :smile: \x1b[2J", "after": "b\r\x00"}
    text = printed(samples=[nasty], width=200, force_terminal=True, color_system="standard")
    assert "[red]a[/red] [/b] :smile: \\x1b[2J" in text and "b\\r\\x00" in text


def test_long_completion_is_cut_and_says_so():
    text = printed(samples=[{**SAMPLE, "after": "y" * 5000}])
    assert 500 < text.count("y") < 700 and "..." in text


def test_long_run_folder_is_not_wrapped():
    folder = "/".join(["a_long_folder_name"] * 8)
    assert f"run folder: {folder}\n" in printed(folder=folder)


def test_sample_without_an_answer_has_no_answer_line():
    assert "answer" not in printed(samples=[{**SAMPLE, "answer": None}])


@pytest.mark.parametrize("samples", [(), ({**SAMPLE, "before": "", "after": ""},)])
def test_no_samples_and_empty_completions_print(samples):
    assert "run folder" in printed(samples=samples)
