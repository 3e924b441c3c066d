"""An ablation read back from its run folders: compared by seed, in tables, figures and one report."""

import base64
import io
import json
import re
from html import unescape

import pytest
from PIL import Image
from rich.console import Console

from looprl.measure.ablation import compare_arms
from looprl.measure.ablation_report import write_ablation_report
from looprl.measure.ablation_tables import cost_cells, quality_cells, run_cells, transfer_cells
from looprl.runs import RunFolder

SETTINGS = {"replay_from": "penultimate", "neumann_steps": 4, "num_loops": 6}
ARMS = ["full", "reuse"]
SEEDS = [0, 1, 2]
AFTER = {"full": [0.50, 0.60, 0.70], "reuse": [0.53, 0.61, 0.72]}
TRANSFER = {"full": [0.20, 0.20, 0.20], "reuse": [0.30, 0.10, 0.20]}
# scoring + backward of each step; the first is a slow start, the third is one slow step
UPDATES = {"full": [9.0, 1.0, 5.0, 1.0], "reuse": [9.0, 0.4, 5.0, 0.4]}


def make_run(path, arm, seed, transfer=True):
    folder = RunFolder.create(path / arm / f"seed-{seed}")
    folder.write_config({"estimator": arm, "seed": seed, **SETTINGS})
    for step, seconds in enumerate(UPDATES[arm], start=1):
        row = {
            "step": step,
            "reward": 0.1 * step,
            "time/scoring": 0.25 * seconds,
            "time/backward": 0.75 * seconds,
            "time/rollout": 2.0 if step > 1 else 50.0,
            "time/evaluation": 100.0,
        }
        folder.append_metrics(row | ({"eval_pass_at_1": 0.45} if step == 2 else {}))
    summary = {"pass_at_1_before": 0.4, "pass_at_1_after": AFTER[arm][seed], "n": 100, "steps": 4, "seconds": 9.0}
    if transfer:
        summary |= {
            "transfer_pass_at_1_before": 0.1,
            "transfer_pass_at_1_after": TRANSFER[arm][seed],
            "transfer_n": 50,
        }
    folder.write_summary(summary)
    return folder.path


@pytest.fixture
def folder(tmp_path):
    for arm in ARMS:
        for seed in SEEDS:
            make_run(tmp_path, arm, seed)
    return tmp_path


def compared(folder, seeds=SEEDS):
    return compare_arms(folder, ARMS, seeds, "full")


def test_arms_are_compared_in_pairs_over_the_seeds(folder):
    full, reuse = compared(folder)
    assert full.pass_at_1_before.mean == pytest.approx(0.4) and full.pass_at_1_after.mean == pytest.approx(0.6)
    assert full.pass_at_1_after.deviation == pytest.approx(0.1)
    assert full.difference is None and full.transfer_difference is None
    # by pairs .03, .01, .02; the spread between seeds drops out
    assert reuse.difference.mean == pytest.approx(0.02)
    half = 4.302653 * 0.01 / 3**0.5
    assert reuse.difference.interval == pytest.approx((0.02 - half, 0.02 + half), abs=1e-7)
    assert reuse.transfer_difference.mean == pytest.approx(0.0)
    assert reuse.settings == {"estimator": "reuse", **SETTINGS}


def test_seconds_are_the_median_update_without_the_first_step(folder):
    full, reuse = compared(folder)
    assert full.seconds.mean == pytest.approx(1.0) and reuse.seconds.mean == pytest.approx(0.4)
    assert full.speedup == pytest.approx(1.0) and reuse.speedup == pytest.approx(2.5)


def test_phases_are_seconds_per_step_without_the_first_step_and_without_evaluations(folder):
    (run, *_) = compared(folder)[0].runs
    assert set(run.phases) == {"scoring", "backward", "rollout"}
    # mean update 7 / 3 s, a quarter of it scoring
    assert run.phases["scoring"] == pytest.approx(7 / 12) and run.phases["rollout"] == pytest.approx(2.0)


def test_learning_curve_goes_from_before_over_the_evaluations_to_after(folder):
    run = compared(folder)[1].runs[2]
    assert run.pass_rates == [(0, 0.4), (2, 0.45), (4, 0.72)]
    assert [step for step, _ in run.rewards] == [1, 2, 3, 4]


def test_an_unfinished_run_is_left_out_of_both_sides_of_its_pair(folder):
    (folder / "full" / "seed-1" / "summary.json").unlink()
    full, reuse = compared(folder)
    assert [run.seed for run in full.runs] == [0, 2] and len(reuse.runs) == 3
    assert reuse.difference.mean == pytest.approx((0.03 + 0.02) / 2) and reuse.difference.n == 2


def test_an_arm_without_a_finished_run_has_no_numbers(folder):
    full, reuse = compare_arms(folder, ARMS, [7], "full")
    assert full.runs == [] and full.pass_at_1_after is None and reuse.speedup is None
    assert quality_cells([full, reuse]).rows == [("full", ["-", "-", "-"]), ("reuse", ["-", "-", "-"])]


def test_tables_show_means_deviations_and_intervals(folder):
    rows = compared(folder)
    quality, transfer, cost = quality_cells(rows), transfer_cells(rows), cost_cells(rows)
    assert "100 held-out prompts" in quality.title and "3 seeds" in quality.title
    assert quality.rows[1] == ("reuse", ["0.400 ± 0.000", "0.620 ± 0.095", "+0.020 [-0.005, +0.045]"])
    assert quality.rows[0] == ("full", ["0.400 ± 0.000", "0.600 ± 0.100", "-"])
    assert "50 prompts" in transfer.title and transfer.rows[1][1][1] == "0.200 ± 0.100"
    assert cost.rows == [("full", ["1.000 ± 0.000", "1.00 x"]), ("reuse", ["0.400 ± 0.000", "2.50 x"])]
    assert [name for name, _ in run_cells(rows).rows][:2] == ["full, seed 0", "full, seed 1"]


def test_tables_fit_80_columns(folder):
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    for cells in (quality_cells, transfer_cells, cost_cells):
        console.print(cells(compared(folder)).as_text())
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    assert "…" not in stream.getvalue()


def test_without_a_second_task_there_is_no_transfer_table(tmp_path):
    for arm in ARMS:
        make_run(tmp_path, arm, 0, transfer=False)
    assert transfer_cells(compared(tmp_path, [0])) is None


def test_report_holds_the_png_files_and_the_tables(folder):
    report = write_ablation_report(folder, compared(folder), 6, {"recipe": "recipes/<quick>.yaml"})
    text = report.read_text()
    assert report == folder / "report.html"
    embedded = [base64.b64decode(each) for each in re.findall(r'src="data:image/png;base64,([^"]*)"', text)]
    files = ["pass_at_1.png", "reward.png", "differences.png", "seconds_by_phase.png"]
    assert embedded == [(folder / name).read_bytes() for name in files]
    for png in embedded:
        image = Image.open(io.BytesIO(png))
        assert image.width >= 7.4 * 200 and image.convert("L").getextrema() == (0, 255)
    assert "+0.020 [-0.005, +0.045]" in text and "2.50 x" in text and "reuse, seed 2" in text
    assert "recipes/<quick>.yaml" in unescape(text) and "<quick>" not in text
    assert "runs are finished" not in text
    assert "://" not in text and "default-src 'none'" in text


def test_report_of_a_part_says_so(folder):
    text = write_ablation_report(folder, compared(folder, [0]), 6, {}).read_text()
    assert "2 of 6 runs are finished" in text


def test_json_has_aggregates_and_every_run(folder):
    write_ablation_report(folder, compared(folder), 6, {})
    full, reuse = json.loads((folder / "ablation.json").read_text())
    assert (full["arm"], reuse["arm"], reuse["baseline"]) == ("full", "reuse", "full")
    assert reuse["difference"]["mean"] == pytest.approx(0.02) and full["difference"] is None
    assert [run["pass_at_1_after"] for run in reuse["runs"]] == AFTER["reuse"]
    assert reuse["speedup"] == pytest.approx(2.5)


def test_the_same_runs_give_the_same_report(folder):
    first = write_ablation_report(folder, compared(folder), 6, {}).read_bytes()
    assert write_ablation_report(folder, compared(folder), 6, {}).read_bytes() == first
