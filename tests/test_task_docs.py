"""docs/tasks.md keeps its word: its example runs, its recipes load, and the gaps of the fallback are listed."""

import json
import re
from pathlib import Path

import pytest

from looprl.cli import main
from looprl.recipe import parse_recipe
from looprl.rewards import load_rewards, required_columns
from looprl.training.config import LoopedGRPOConfig
from looprl.training.train_recipe import TrainRecipe

ROOT = Path(__file__).resolve().parents[1]
DOCS = (ROOT / "docs" / "tasks.md").read_text()


def test_the_example_of_a_new_task_scores_completions_in_under_40_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (rows,), (code,) = (re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL) for language in ("json", "python"))
    assert len((rows + code).splitlines()) < 40
    completions = ["pots", "opol"]
    tried = [json.loads(line) for line in rows.splitlines()]
    tried = [{**row, "completion": text} for row, text in zip(tried, completions, strict=True)]
    Path("rewards").mkdir()
    Path("rewards/backwards.py").write_text(code)
    Path("tried.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tried))
    (command,) = re.findall(r"looprl (rewards try .*)", DOCS)
    assert main(command.split()) == 0
    assert json.loads(Path("scores.json").read_text()) == {"scores": [1.0, 0.1]}
    assert "2 rows: mean 0.550 over 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "dataset", "columns"),
    [("gsm8k", "openai/gsm8k", ["answer"]), ("mbppplus", "evalplus/mbppplus", ["tests"])],
)
def test_the_recipes_need_nothing_but_a_model(name, dataset, columns):
    recipe, config = parse_recipe((TrainRecipe, LoopedGRPOConfig), [name, "--model", "m"], "looprl train")
    assert recipe.dataset == recipe.eval_dataset == dataset and recipe.split != recipe.eval_split
    assert [required_columns(reward) for reward in load_rewards(recipe.reward)] == [columns]
    assert (config.loss_type, config.scale_rewards, config.beta) == ("dr_grpo", "none", 0.0)
    assert config.per_device_train_batch_size % config.num_generations == 0


def test_the_gaps_of_the_fallback_are_listed():
    for gap in ("home directory", "environment", "writes where", "sockets", "other processes", "fork bomb"):
        assert gap in DOCS
