"""The pair of models that shows what convergence is worth: one recipe's core converges, its twin's does not."""

import json

import pytest

from looprl.cli import main
from looprl.measure.estimator_rows import estimator_name
from looprl.runs import read_metrics

TASK = ["--task_options", '{"num_steps": 1}', "--per_device_train_batch_size", "48", "--max_completion_length", "10"]


@pytest.fixture(params=["converging", "nonconverging"])
def twin(request):
    return request.param


def test_gradients_shows_the_loss_of_fidelity(twin, tmp_path):
    arguments = ["gradients", "recipes/gradients.yaml", "--model", f"tests/data/twins/{twin}", *TASK]
    arguments += ["--num_loops", "6", "--neumann_steps", "0", "4", "auto", "--repeats", "1"]
    assert main([*arguments, "--output_dir", str(tmp_path / "run")]) == 0
    rows = {estimator_name(row): row for row in json.loads((tmp_path / "run" / "gradients.json").read_text())}
    to_full = {name: row["cosine_to_full"]["all"] for name, row in rows.items()}
    if twin == "converging":
        assert to_full["reuse K=4"] > 0.995 and to_full["reuse K=auto"] > 0.99 and rows["reuse K=auto"]["products"] < 4
    else:
        assert to_full["reuse K=4"] < 0.97 and to_full["reuse K=auto"] < 0.97
        assert rows["endpoint K=4"]["logprob_gap_max"] > 0.1


def test_training_with_reuse_warns_from_the_first_control_on_where_it_is_unsafe(twin, tmp_path, caplog):
    arguments = ["train", "recipes/quickstart.yaml", "--model", f"tests/data/twins/{twin}", *TASK, "--eval_size", "8"]
    arguments += ["--max_steps", "2", "--control_every", "1", "--output_dir", str(tmp_path / "run")]
    assert main(arguments) == 0
    rows = read_metrics(tmp_path / "run")
    warned = [record.args[0] for record in caplog.records if record.name == "looprl.training.control"]
    unsafe = twin == "nonconverging"
    assert warned == ([0, 1] if unsafe else [])
    assert all((row["control/cosine_to_full"] < 0.99) == unsafe for row in rows)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Control: the gradient beside full BPTT" in page and ("it is not safe" in page) == unsafe
