"""What is shown and kept while a run goes on."""

import io
import re

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from looprl.runs import RunFolder, read_metrics
from looprl.training.callbacks import MetricsToRunFolder, ProgressLine, show_only_progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def arguments(tmp_path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to="none")


def run_training(callback, arguments, steps, log_every=1, first=0, main_process=True, reward_key="reward"):
    """Send the events of a training run in transformers' order."""
    control = TrainerControl()
    state = TrainerState(global_step=first, max_steps=steps, is_world_process_zero=main_process)
    callback.on_train_begin(arguments, state, control)
    for step in range(first + 1, steps + 1):
        callback.on_step_begin(arguments, state, control)
        state.global_step = step
        callback.on_step_end(arguments, state, control)
        if step % log_every == 0:
            logs = {reward_key: step / 100, "completions/mean_length": 20.0 + step, "loss": 0.5}
            callback.on_log(arguments, state, control, logs=logs)
    callback.on_log(arguments, state, control, logs={"train_runtime": 12.0, "train_loss": 0.5})
    callback.on_train_end(arguments, state, control)


def test_every_log_becomes_a_metrics_line_with_its_step_but_the_final_totals_do_not(tmp_path, arguments):
    run_training(MetricsToRunFolder(RunFolder.create(tmp_path / "run")), arguments, steps=3)
    rows = read_metrics(tmp_path / "run")
    assert [(row["step"], row["reward"]) for row in rows] == [(1, 0.01), (2, 0.02), (3, 0.03)]
    assert all("train_runtime" not in row for row in rows)


def test_other_processes_write_and_print_nothing(tmp_path, arguments):
    stream = io.StringIO()
    run_training(MetricsToRunFolder(RunFolder.create(tmp_path / "run")), arguments, 2, main_process=False)
    run_training(ProgressLine(stream), arguments, 20, main_process=False)
    assert not (tmp_path / "run" / "metrics.jsonl").exists() and stream.getvalue() == ""


def test_without_a_terminal_a_plain_line_is_printed_every_tenth_of_the_steps(arguments):
    stream = io.StringIO()
    run_training(ProgressLine(stream), arguments, steps=40)
    lines = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step {step}/40" for step in range(4, 41, 4)]
    assert re.fullmatch(r"step 8/40: reward 0\.08, length 28, s/step \d+\.\d\d", lines[1])


def test_plain_lines_appear_even_when_logs_are_rarer(arguments):
    stream = io.StringIO()
    run_training(ProgressLine(stream), arguments, steps=20, log_every=7)
    assert len(stream.getvalue().splitlines()) == 10


def test_short_run_prints_one_line_per_step(arguments):
    stream = io.StringIO()
    run_training(ProgressLine(stream), arguments, steps=3)
    assert len(stream.getvalue().splitlines()) == 3


def test_terminal_gets_one_live_bar_with_reward_length_and_seconds(arguments):
    stream = Terminal()
    run_training(ProgressLine(stream), arguments, steps=5)
    text = stream.getvalue()
    assert "5/5" in text and re.search(r"reward=0\.05, length=25, s/step=\d+\.\d\d", text)
    assert text.count("\n") == 1 and "{" not in text


def test_resumed_bar_starts_where_the_run_stopped(arguments):
    stream = Terminal()
    run_training(ProgressLine(stream), arguments, steps=5, first=3)
    assert "3/5" in stream.getvalue() and "1/5" not in stream.getvalue()


def test_loss_is_shown_where_there_is_no_reward(arguments):
    stream = io.StringIO()
    run_training(ProgressLine(stream), arguments, steps=2, reward_key="other")
    assert "loss 0.5" in stream.getvalue() and "reward" not in stream.getvalue()


@pytest.mark.parametrize("disable_tqdm", [True, False])
def test_progress_line_replaces_transformers_own_displays(tmp_path, disable_tqdm, capsys):
    import torch
    from transformers import Trainer

    arguments = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to="none", max_steps=2, logging_steps=1,
        save_strategy="no", disable_tqdm=disable_tqdm, dataloader_pin_memory=False,
    )  # fmt: skip

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return {"loss": (self.weight * x).sum()}

    trainer = Trainer(Model(), arguments, train_dataset=[{"x": torch.ones(1)}] * 16)
    stream = io.StringIO()
    show_only_progress_line(trainer, stream)
    trainer.train()
    captured = capsys.readouterr()
    assert "{" not in captured.out + captured.err
    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == ["step 1/2", "step 2/2"]
