"""looprl ablate RECIPE: train arms that differ in a few keys on several seeds, and compare them.

Every run is an ordinary run folder of `looprl train`, made in a process of its own:

    OUT/ARM/recipe.yaml     the arm as a training recipe
    OUT/ARM/seed-N/         the run folder, and seed-N.log beside it: what the run printed
    OUT/ablation.json, report.html, *.png

The same command goes on where it was stopped: runs that reached their end are kept, the others are made anew.
"""

import fcntl
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from looprl.child import run_command
from looprl.errors import UserError
from looprl.measure.ablation import ArmRow, compare_arms, is_finished, read_arm_run, run_folder
from looprl.measure.ablation_report import write_ablation_report
from looprl.measure.ablation_tables import cost_cells, quality_cells, transfer_cells
from looprl.measure.summary import rate
from looprl.recipe import parse_recipe, recipe_name
from looprl.recipe_file import find_recipe, load_recipe
from looprl.runs import CONFIG_FILE, METRICS_FILE, RunFolder, plain, write_atomically
from looprl.training.ablation import AblationRecipe, Arm, resolve_arms

ARM_RECIPE = "recipe.yaml"
_LOG_LINES = 15
_SECONDS_FOR_LOCK = 15


def run(argv: list[str]) -> int:
    """Check every arm, train what is not finished yet, and print and write the comparison."""
    name = recipe_name(argv) or "ablation"
    if _names_training_recipe(argv):
        argv, name = ["--recipe", *argv], f"ablation-{name}"
    (recipe,) = parse_recipe((AblationRecipe,), argv, "looprl ablate", defaults={"output_dir": f"runs/{name}"})
    arms = resolve_arms(recipe)
    console = Console()
    with _locked(Path(recipe.output_dir)) as lock:
        folder = _open(recipe, arms)
        _train_missing(recipe, arms, folder, lock, console)
        rows, report = _write(recipe, arms, folder)
    for cells in filter(None, (quality_cells(rows), transfer_cells(rows), cost_cells(rows))):
        console.print(cells.as_text())
    _say(console, f"ablation folder: {folder}")
    _say(console, f"report: {report}")
    return 0


def _names_training_recipe(argv: list[str]) -> bool:
    """Whether the first argument is what the arms share, not an ablation's recipe: the default arms then apply."""
    if recipe_name(argv) is None:
        return False
    keys = load_recipe(find_recipe(argv[0]))
    return "recipe" not in keys and "model" in keys


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Make the folder and lock it, also for the runs in it: a run that was orphaned is waited for.

    Raises:
        UserError: another process works in it.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder: give another --output_dir")
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _SECONDS_FOR_LOCK
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"another looprl ablate is at work in {folder}: let it end, or give another --output_dir"
                    ) from error
                time.sleep(0.2)
        yield handle
    finally:
        os.close(handle)


def _open(recipe: AblationRecipe, arms: Sequence[Arm]) -> Path:
    """Start a new ablation folder, or go on in one whose arms are the same; a folder of anything else is refused."""
    path = Path(recipe.output_dir or "")
    goes_on = any(path.iterdir()) and not recipe.overwrite
    if goes_on:
        _check_same(path, arms)
    folder = RunFolder.create(path, overwrite=recipe.overwrite, resume=goes_on)
    folder.write_config({"command": "ablate", **vars(recipe)})
    for arm in arms:
        (path / arm.name).mkdir(exist_ok=True)
        text = f"# Arm {arm.name} of {recipe.recipe}; each run adds --seed N --output_dir DIR.\n"
        write_atomically(path / arm.name / ARM_RECIPE, text + _yaml(arm.settings))
    return path


def _check_same(path: Path, arms: Sequence[Arm]) -> None:
    """Make sure that the finished runs in the folder were made with the settings that are asked for now.

    More arms or seeds are no difference: the runs that are there stay what they are. An arm without a finished run may
    change, so that a mistake in it costs nothing.
    """
    config = path / CONFIG_FILE
    if not config.is_file() or load_recipe(config).get("command") != "ablate":
        raise UserError(f"{path} is not empty and not the folder of an ablation: give another --output_dir")
    for arm in arms:
        stored = path / arm.name / ARM_RECIPE
        if stored.is_file() and any(map(is_finished, stored.parent.glob("seed-*"))):
            before, now = load_recipe(stored), yaml.safe_load(_yaml(arm.settings))
            for key in sorted(before.keys() | now.keys()):
                if before.get(key) != now.get(key):
                    raise UserError(
                        f"{path} has runs of arm {arm.name!r} with {_setting(before, key)}, but it is asked for with "
                        f"{_setting(now, key)}: give another --output_dir, or start anew with --overwrite"
                    )


def _train_missing(recipe: AblationRecipe, arms: Sequence[Arm], folder: Path, lock: int, console: Console) -> None:
    """Train the runs that are not finished, a seed of every arm before the next, so that a slow hour slows all alike.

    The report is written anew after each run, and a line says how far it is.
    """
    plan = [(arm, seed, run_folder(folder, arm.name, seed)) for seed, arm in product(recipe.seeds, arms)]
    missing = [each for each in plan if not is_finished(each[2])]
    kept = len(plan) - len(missing)
    _say(console, f"{len(arms)} arms x {len(recipe.seeds)} seeds in {folder}; once stopped, the same command goes on")
    if kept:
        _say(console, f"{kept} of {len(plan)} runs are there already and are kept")
    durations: list[float] = []
    for number, (arm, seed, target) in enumerate(missing, start=kept + 1):
        title = f"[{number}/{len(plan)}] {arm.name}, seed {seed}"
        durations.append(_train(console, title, arm, seed, target, lock))
        _write(recipe, arms, folder)
        done = read_arm_run(target, seed)
        to_go = (len(plan) - number) * statistics.mean(durations)
        rates = f"pass@1 {rate(done.pass_at_1_before)} -> {rate(done.pass_at_1_after)}"
        _say(console, f"{title}: {rates} in {durations[-1]:.0f} s" + (f"; {_about(to_go)} left" if to_go else ""))


def _train(console: Console, title: str, arm: Arm, seed: int, target: Path, lock: int) -> float:
    """Train one run to its end and return its seconds; UserError, with the end of its log, when it fails."""
    log = target.with_name(f"{target.name}.log")
    arguments = ["train", str(target.parent / ARM_RECIPE), "--seed", str(seed), "--output_dir", str(target)]
    start = time.monotonic()
    with console.status(title) as status:
        code = run_command(
            [*arguments, "--overwrite"], log, lock, lambda: status.update(f"{title}: {_steps_logged(target)}")
        )
    if code != 0:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
        raise UserError(
            f"arm {arm.name!r}, seed {seed} failed with code {code}; finished runs are kept. The end of {log}:\n{end}"
        )
    return time.monotonic() - start


def _steps_logged(target: Path) -> str:
    try:
        steps = (target / METRICS_FILE).read_bytes().count(b"\n")
    except FileNotFoundError:
        steps = 0
    return f"{steps} steps" if steps else "starting"


def _write(recipe: AblationRecipe, arms: Sequence[Arm], folder: Path) -> tuple[list[ArmRow], Path]:
    rows = compare_arms(folder, [arm.name for arm in arms], recipe.seeds, recipe.baseline)
    compared = {**vars(recipe), "arms": {arm.name: arm.own for arm in arms}}
    return rows, write_ablation_report(folder, rows, len(arms) * len(recipe.seeds), compared)


def _yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)


def _setting(settings: dict[str, Any], key: str) -> str:
    return f"{key}: {settings[key]!r}" if key in settings else f"no {key}"


def _about(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"


def _say(console: Console, text: str) -> None:
    # Not wrapped, so that paths can be copied whatever the width; brackets are no markup.
    console.print(Text(text), soft_wrap=True)
