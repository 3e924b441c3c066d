"""Evaluation on the way is logged with its step and disturbs nothing; trackers get what the run folder gets."""

import io

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.integrations import get_available_reporting_integrations

from looprl.commands import train
from looprl.errors import UserError
from looprl.measure.evaluate import EvalSet, evaluate
from looprl.runs import RunFolder, read_metrics
from looprl.training.callbacks import MetricsToRunFolder, show_only_progress_line
from looprl.training.eval_every import EvalEvery
from looprl.training.trackers import check_trackers
from tests.run_metrics import without_clocks
from tests.training.conftest import make_trainer

STEPS = 3
HELD_OUT = Dataset.from_dict({"prompt": [f"Ann has {number} coins.\n" for number in range(10, 26)]})


def noisy_reward(completion_ids, **kwargs):
    """Depends on the completion and on torch's random state."""
    return [(ids[0] % 2) + 0.1 * float(torch.rand(())) for ids in completion_ids]


def judge(completion_ids, **kwargs):
    """A held-out reward that draws random numbers of its own."""
    torch.rand(5)
    return [float(ids[0] % 2) for ids in completion_ids]


class Tracker(TrainerCallback):
    def __init__(self):
        self.logged = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logged.append((state.global_step, dict(logs)))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_training(folder, eval_every=None, **settings):
    trainer = make_trainer(folder.path, noisy_reward, max_steps=STEPS, **settings)
    trainer.on_completions = folder.write_completions
    tracker, stream = Tracker(), Terminal()
    trainer.add_callback(MetricsToRunFolder(folder))
    trainer.add_callback(tracker)
    if eval_every:
        trainer.add_callback(EvalEvery(eval_every, trainer, EvalSet(HELD_OUT, judge)))
    show_only_progress_line(trainer, stream)
    trainer.train()
    return trainer, tracker, stream.getvalue()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same training with an evaluation after each step and TRL's tables, and without; one engine for both."""
    with_evals = RunFolder.create(tmp_path_factory.mktemp("with"))
    without = RunFolder.create(tmp_path_factory.mktemp("without"))
    rare = RunFolder.create(tmp_path_factory.mktemp("rare"))
    trainer, tracker, shown = run_training(with_evals, eval_every=1, log_completions=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("looprl.training.trainer.RolloutEngine", lambda *args, **kwargs: trainer.engine)
        run_training(without)
        run_training(rare, eval_every=2, logging_steps=10)
    yield {"with": with_evals, "without": without, "rare": rare, "trainer": trainer, "tracker": tracker, "shown": shown}
    trainer.engine.close()


def training_metrics(folder):
    return [
        {key: value for key, value in without_clocks(row).items() if key != "eval_pass_at_1"}
        for row in read_metrics(folder.path)
    ]


def test_training_is_the_same_with_and_without_evaluation(runs):
    assert training_metrics(runs["with"]) == training_metrics(runs["without"])
    assert len({row["grad_norm"] for row in training_metrics(runs["with"])}) == STEPS
    for step in range(STEPS):
        first, second = (runs[name].path / "completions" / f"step-{step:05d}.jsonl" for name in ("with", "without"))
        assert first.read_text() == second.read_text()


def test_each_step_logs_pass_at_1_of_the_weights_it_left(runs):
    rows = read_metrics(runs["with"].path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(0 <= row["eval_pass_at_1"] <= 1 and row["time/evaluation"] > 0 for row in rows)
    assert all("eval_pass_at_1" not in row for row in read_metrics(runs["without"].path))
    trainer = runs["trainer"]
    trainer.vllm_generation.sync_weights()
    final = evaluate(trainer.engine, trainer.processing_class, HELD_OUT, judge, trainer.sampling(), trainer.args.seed)
    assert rows[-1]["eval_pass_at_1"] == final.pass_at_1 and final.n == len(HELD_OUT)


def test_an_evaluated_step_is_logged_even_when_logs_are_rarer(runs):
    rows = read_metrics(runs["rare"].path)
    assert [row["step"] for row in rows] == [2]
    assert rows[0]["eval_pass_at_1"] == read_metrics(runs["with"].path)[1]["eval_pass_at_1"]


def test_trackers_get_every_key_of_the_metrics_file(runs):
    logged = {step: logs for step, logs in runs["tracker"].logged if "train_runtime" not in logs}
    for row in read_metrics(runs["with"].path):
        assert set(row) - {"step"} <= set(logged[row["step"]])
        assert {"reward", "replay/logprob_gap_max", "time/rollout", "eval_pass_at_1"} <= set(logged[row["step"]])


def test_trl_completion_tables_and_looprl_completions_stand_side_by_side(runs):
    names = sorted(path.name for path in (runs["with"].path / "completions").iterdir())
    assert names == [f"completions_{step:05d}.parquet" for step in (1, 2, 3)] + [
        f"step-{step:05d}.jsonl" for step in (0, 1, 2)
    ]


def test_progress_line_makes_room_for_the_tables_and_comes_back(runs):
    shown = runs["shown"]
    assert "3/3" in shown and "reward=" in shown and shown.count("\n") == 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_tracker_that_is_not_installed_is_said_with_the_way_to_install_it(monkeypatch, name):
    monkeypatch.setattr("looprl.training.trackers.get_available_reporting_integrations", lambda: [])
    with pytest.raises(UserError, match=rf"report_to names {name}.*pip install {name}"):
        check_trackers([name])
    monkeypatch.setattr("looprl.training.trackers.get_available_reporting_integrations", lambda: [name])
    check_trackers([name])


def test_unknown_tracker_names_the_nearest():
    with pytest.raises(UserError, match=r"'tensorbord'.*'tensorboard'"):
        check_trackers(["tensorbord"])
    check_trackers([])


def test_command_refuses_a_missing_tracker_before_anything_is_made(tmp_path):
    missing = next(
        name for name in ("trackio", "wandb", "comet_ml") if name not in get_available_reporting_integrations()
    )
    with pytest.raises(UserError, match=missing):
        train.run(["recipes/quickstart.yaml", "--report_to", missing, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags", [("--eval_every", "0"), ("--eval_every", "1", "--dataset", "tests/data/gsm8k_train_48.jsonl")]
)
def test_eval_every_that_cannot_work_is_refused_before_anything_is_made(tmp_path, flags):
    with pytest.raises(UserError, match="eval_every"):
        train.run(["recipes/quickstart.yaml", "--output_dir", str(tmp_path / "run"), *flags])
    assert not (tmp_path / "run").exists()
