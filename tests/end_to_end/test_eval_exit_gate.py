"""`looprl eval` on an Ouro: accuracy at every exit depth, with the gate's probabilities and with early exit."""

import json
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch

from looprl.cli import main
from looprl.models import load_model
from looprl.rollout.engine import RolloutEngine
from tests.published import save_published

SIZE, K, LOOPS, THRESHOLD = 6, 2, 3, 0.4
DEPTHS = [(1, None), (2, None), (3, None), (3, THRESHOLD)]


def run(*given):
    return main([str(each) for each in given])


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The run, what it printed, the model, and the engine's records by depth, as they came."""
    folder = tmp_path_factory.mktemp("exit")
    model = load_model(str(save_published("ouro", folder / "model", num_loops=LOOPS)))
    (folder / "reward.py").write_text(
        "def even(completions, completion_ids, **kwargs):\n    return [float(sum(ids) % 2) for ids in completion_ids]\n"
    )
    records = {}
    generate = RolloutEngine.generate

    def seen(engine, *arguments):
        drawn = generate(engine, *arguments)
        records.setdefault((engine.num_loops, engine.exit_threshold), []).extend(drawn)
        return drawn

    arguments = ["eval", folder / "model", "--reward", f"{folder}/reward.py:even", "--eval_dataset", "arithmetic"]
    arguments += ["--eval_size", SIZE, "--k", K, "--batch_size", 8, "--max_completion_length", 10]
    arguments += ["--exit_gate", "true", "--exit_thresholds", THRESHOLD, "--output_dir", folder / "run"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output:
        patch.setattr(RolloutEngine, "generate", seen)
        assert run(*arguments) == 0
    return folder / "run", arguments, output.getvalue(), model, records


@torch.no_grad()
def published_exits(model, record, num_loops, threshold):
    """Exit probabilities [G, R] and the loop that reads out each token, from the published formula in fp64."""
    ids = torch.tensor([[*record.prompt_ids, *record.completion_ids]])[:, :-1]
    states = [model(ids, num_loops=loops).state[0, len(record.prompt_ids) - 1 :] for loops in range(1, num_loops + 1)]
    stops = [torch.sigmoid(model.model.early_exit_gate(state))[:, 0] for state in states]
    exits, left = [], torch.ones_like(stops[0])
    for stop in stops[:-1]:
        exits.append(stop * left)
        left = left * (1 - stop)
    probabilities = torch.stack([*exits, left], dim=-1)
    loops = [
        next((loop for loop in range(1, num_loops) if sum(token[:loop]) >= (threshold or 2)), num_loops)
        for token in probabilities.tolist()
    ]
    return probabilities, torch.tensor(loops).double()


def test_every_depth_has_its_accuracy_and_the_gate_s_probabilities_by_the_published_formula(evaluated):
    folder, _, _, model, records = evaluated
    rows = json.loads((folder / "eval.json").read_text())
    assert [(row["num_loops"], row["exit_threshold"]) for row in rows] == DEPTHS == list(records)
    model = model.double()
    found = {}
    for row, depth in zip(rows, DEPTHS, strict=True):
        drawn = records[depth]
        assert len(drawn) == SIZE * K and row["n"] == SIZE
        assert row["avg_at_k"] == pytest.approx(sum(sum(each.completion_ids) % 2 for each in drawn) / (SIZE * K))
        exits = [published_exits(model, record, *depth) for record in drawn]
        found[depth] = torch.cat([each for each, _ in exits]).mean(0)
        assert row["exit_probabilities"] == pytest.approx(found[depth].tolist(), abs=1e-5)
        assert row["exit_loop"] == pytest.approx(float(torch.cat([loops for _, loops in exits]).mean()))
        mean_loop = sum(loop * float(p) for loop, p in enumerate(found[depth], start=1))
        assert row["expected_exit_loop"] == pytest.approx(mean_loop, abs=1e-5)
    for row, loops in zip(rows[:3], (1, 2, 3), strict=True):
        assert row["exit_probability"] == pytest.approx(float(found[3, None][loops - 1]), abs=1e-5)
        assert row["exit_cdf"] == pytest.approx(float(found[3, None][:loops].sum()), abs=1e-5)
        assert row["exit_loop"] == loops and 0.02 < row["exit_probability"] < 0.98
    assert "exit_cdf" not in rows[3] and 1 < rows[3]["exit_loop"] < 3


def test_table_and_report_show_the_gate(evaluated):
    folder, _, output, _, _ = evaluated
    page = (folder / "report.html").read_text()
    for row in json.loads((folder / "eval.json").read_text()):
        for text in (output, page):
            assert f"{row['expected_exit_loop']:.3f}" in text and f"{row.get('exit_cdf', 1):.3f}" in text
            assert "R = 3, q = 0.4" in text and "exit cdf" in text
    assert "first loop by which" in page


def test_a_finished_evaluation_is_resumed_without_an_engine(evaluated, monkeypatch):
    folder, arguments, _, _, _ = evaluated
    names = ("eval.json", "problems.jsonl", "eval.png")
    before = {name: (folder / name).read_bytes() for name in names}
    for name in names:
        (folder / name).unlink()
    monkeypatch.setattr("looprl.commands.eval.RolloutEngine", None)
    assert run(*arguments, "--resume") == 0
    assert {name: (folder / name).read_bytes() for name in names} == before


def test_completions_drawn_without_the_gate_are_not_mixed_in(evaluated, capsys):
    arguments = evaluated[1]
    plain = [each for each in arguments if each not in ("--exit_gate", "true", "--exit_thresholds", THRESHOLD)]
    assert run(*plain, "--exit_gate", "false", "--resume") == 2
    assert "was evaluated with exit_gate: True" in capsys.readouterr().err
