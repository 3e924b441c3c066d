"""Reads the run folders of an ablation back, and compares its arms over the seeds."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from looprl.measure.paired import Difference, Spread, paired_difference
from looprl.measure.plots import series
from looprl.measure.summary import phase_seconds
from looprl.runs import CONFIG_FILE, SUMMARY_FILE, read_metrics

ARM_KEYS = ("estimator", "replay_from", "neumann_steps", "num_loops")
Points = list[tuple[int, float]]


@dataclass(frozen=True)
class ArmRun:
    """One finished run: pass rates (None where not measured) with their n, and per-step figures.

    update_seconds: scoring + backward of one update, the median over the steps. phases: mean seconds of a step by
    phase, without evaluations. Both leave the first step out, which warms up. pass_rates, rewards: (step, value).
    """

    seed: int
    pass_at_1_before: float | None
    pass_at_1_after: float | None
    n: int
    transfer_pass_at_1_before: float | None
    transfer_pass_at_1_after: float | None
    transfer_n: int
    update_seconds: float | None
    phases: dict[str, float]
    pass_rates: Points
    rewards: Points


@dataclass(frozen=True)
class ArmRow:
    """One arm over its finished seeds. What was not measured is None.

    difference: pass@1 after training minus the baseline's, paired by seed; None for the baseline itself, and so is
    transfer_difference. seconds: update_seconds over the seeds. speedup: how many times the baseline's are longer.
    """

    arm: str
    baseline: str
    settings: dict[str, Any]
    pass_at_1_before: Spread | None
    pass_at_1_after: Spread | None
    difference: Difference | None
    transfer_pass_at_1_before: Spread | None
    transfer_pass_at_1_after: Spread | None
    transfer_difference: Difference | None
    seconds: Spread | None
    speedup: float | None
    runs: list[ArmRun]


def is_finished(run_folder: Path) -> bool:
    """Whether the run in this folder reached its end: the summary is the last thing that it writes."""
    return (run_folder / SUMMARY_FILE).is_file()


def read_arm_run(run_folder: Path, seed: int) -> ArmRun:
    """Read a finished run of `looprl train`. Raises UserError on metrics that cannot be read."""
    summary = json.loads((run_folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    metrics = read_metrics(run_folder)
    steady = metrics[1:] or metrics
    updates = [row["time/scoring"] + row["time/backward"] for row in steady if row.get("time/scoring") is not None]
    curve = {0: summary["pass_at_1_before"]} | dict(zip(*series(metrics, "eval_pass_at_1"), strict=True))
    curve[summary["steps"]] = summary["pass_at_1_after"]
    return ArmRun(
        seed=seed,
        pass_at_1_before=summary["pass_at_1_before"],
        pass_at_1_after=summary["pass_at_1_after"],
        n=summary["n"],
        transfer_pass_at_1_before=summary.get("transfer_pass_at_1_before"),
        transfer_pass_at_1_after=summary.get("transfer_pass_at_1_after"),
        transfer_n=summary.get("transfer_n", 0),
        update_seconds=statistics.median(updates) if updates else None,
        phases={
            phase: seconds / len(steady) for phase, seconds in phase_seconds(steady).items() if phase != "evaluation"
        },
        pass_rates=[(step, rate) for step, rate in sorted(curve.items()) if rate is not None],
        rewards=list(zip(*series(metrics, "reward"), strict=True)),
    )


def compare_arms(folder: Path, arms: Sequence[str], seeds: Sequence[int], baseline: str) -> list[ArmRow]:
    """Compare the arms over the runs that are finished, `folder/ARM/seed-N`; a row for each arm, in their order."""
    runs = {
        arm: [read_arm_run(path, seed) for seed in seeds if is_finished(path := run_folder(folder, arm, seed))]
        for arm in arms
    }
    return [_row(folder, arm, baseline, runs[arm], runs[baseline]) for arm in arms]


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    """Where an ablation in `folder` keeps one of its runs."""
    return folder / arm / f"seed-{seed}"


def _row(folder: Path, arm: str, baseline: str, runs: list[ArmRun], baseline_runs: list[ArmRun]) -> ArmRow:
    def spread(name: str) -> Spread | None:
        return Spread.of(list(_by_seed(runs, name).values()))

    def difference(name: str) -> Difference | None:
        if arm == baseline:
            return None
        return paired_difference(_by_seed(runs, name), _by_seed(baseline_runs, name))

    seconds = spread("update_seconds")
    baseline_seconds = Spread.of(list(_by_seed(baseline_runs, "update_seconds").values()))
    return ArmRow(
        arm=arm,
        baseline=baseline,
        settings=_settings(run_folder(folder, arm, runs[0].seed)) if runs else {},
        pass_at_1_before=spread("pass_at_1_before"),
        pass_at_1_after=spread("pass_at_1_after"),
        difference=difference("pass_at_1_after"),
        transfer_pass_at_1_before=spread("transfer_pass_at_1_before"),
        transfer_pass_at_1_after=spread("transfer_pass_at_1_after"),
        transfer_difference=difference("transfer_pass_at_1_after"),
        seconds=seconds,
        speedup=baseline_seconds.mean / seconds.mean if seconds and baseline_seconds else None,
        runs=runs,
    )


def _by_seed(runs: Sequence[ArmRun], name: str) -> Mapping[int, float]:
    values = {run.seed: getattr(run, name) for run in runs}
    return {seed: value for seed, value in values.items() if value is not None}


def _settings(run: Path) -> dict[str, Any]:
    config = yaml.safe_load((run / CONFIG_FILE).read_text(encoding="utf-8"))
    return {key: config.get(key) for key in ARM_KEYS}
