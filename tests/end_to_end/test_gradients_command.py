"""`looprl gradients` on the shipped model: the figures that the method rests on, and errors that name the fault."""

import base64
import json

import pytest

from looprl.cli import main
from looprl.measure.estimator_rows import estimator_name


@pytest.fixture(scope="module")
def compared(looprl, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients") / "run"
    output = looprl(
        *("gradients", "recipes/gradients.yaml", "--output_dir", folder, "--repeats", 1),
        *("--num_loops", 6, 16, "--neumann_steps", 0, 1, 2, 4, "auto", "--per_device_train_batch_size", 48),
    )
    return folder, output, json.loads((folder / "gradients.json").read_text())


def named(rows, num_loops):
    return {estimator_name(row): row for row in rows if row["num_loops"] == num_loops}


@pytest.mark.parametrize("num_loops", [6, 16])
def test_reuse_on_the_shipped_model_is_full_bptt_and_each_product_counts(compared, num_loops):
    rows = named(compared[2], num_loops)
    off = {steps: 1 - rows[f"reuse K={steps}"]["cosine_to_full"]["all"] for steps in (0, 1, 2, 4)}
    assert off[2] <= 1e-4 and off[4] <= 1e-6  # the contract: 1e-3 and 1e-4
    # a term too few or too many shows: each product takes at least a factor of 5
    assert off[0] > 1e-4 and off[1] < off[0] / 5 and off[2] < off[1] / 5 and off[4] < off[2] / 5
    for steps in (0, 1, 2, 4):
        for name in ("reuse", "endpoint"):
            assert rows[f"{name} K={steps}"]["cosine_to_recompute"]["all"] >= 0.9999
    assert abs(rows["reuse K=4"]["norm_ratio"] - 1) < 1e-3


@pytest.mark.parametrize("num_loops", [6, 16])
def test_auto_needs_fewer_products_than_four_for_the_same_direction(compared, num_loops):
    auto = named(compared[2], num_loops)["reuse K=auto"]
    assert auto["cosine_to_full"]["all"] >= 0.999 and 1 <= auto["products"] < 3


def test_replay_is_the_samplers_and_the_endpoint_is_a_loop_further(compared):
    rows = named(compared[2], 6)
    assert rows["reuse K=4"]["logprob_gap_max"] < 1e-5 < rows["endpoint K=4"]["logprob_gap_max"]


def test_the_run_folder_holds_rows_figure_report_and_configuration(compared):
    folder, output, _ = compared
    assert {"gradients.json", "gradients.png", "report.html", "config.yaml"} <= {path.name for path in folder.iterdir()}
    page = (folder / "report.html").read_text()
    assert base64.b64encode((folder / "gradients.png").read_bytes()).decode() in page and "reuse LS K=2" in page
    assert "R = 6" in output and "R = 16" in output and "reuse LS K=2" in output
    assert str(folder) in output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num_loops", "0"], "num_loops"),
        (["--num_loops", "6", "-1"], "num_loops"),
        (["--neumann_steps", "2", "-1"], "neumann_steps must be 0 or more, got -1"),
        (["--neumann_steps", "many"], "neumann_steps"),
        (["--repeats", "0"], "repeats"),
        (["--model", "gone"], "no model at 'gone'"),
        (["--estimator", "bptt"], "estimator"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_sampled(arguments, message, tmp_path, capsys):
    code = main(["gradients", "recipes/gradients.yaml", "--output_dir", str(tmp_path / "run"), *arguments])
    assert code == 2 and message in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_rewards_that_are_all_equal_are_said_with_what_to_do(tmp_path, capsys):
    reward = tmp_path / "same.py"
    reward.write_text("def same(prompts, **kwargs):\n    return [1.0] * len(prompts)\n")
    settings = ["--reward", f"{reward}:same", "--num_loops", "2", "--per_device_train_batch_size", "8"]
    settings += ["--output_dir", str(tmp_path / "run"), "--neumann_steps", "0", "--repeats", "1"]
    assert main(["gradients", "recipes/gradients.yaml", *settings]) == 2
    assert "--random_advantages true" in capsys.readouterr().err
    assert main(["gradients", "recipes/gradients.yaml", *settings, "--random_advantages", "true"]) == 0
    assert json.loads((tmp_path / "run" / "gradients.json").read_text())[0]["cosine_to_full"]["all"] == pytest.approx(1)


def test_a_training_recipe_can_be_compared_as_it_is(tmp_path):
    settings = ["--per_device_train_batch_size", "16", "--neumann_steps", "0", "--repeats", "1"]
    assert main(["gradients", "recipes/quickstart.yaml", "--output_dir", str(tmp_path / "run"), *settings]) == 0
    rows = json.loads((tmp_path / "run" / "gradients.json").read_text())
    assert {row["num_loops"] for row in rows} == {6}
