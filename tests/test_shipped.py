"""Files that come with looprl are found from any folder, in a checkout and from a wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from looprl import shipped
from looprl.recipe_file import find_recipe
from looprl.rewards import load_reward

ROOT = Path(__file__).resolve().parents[1]
MODEL = "recipes/quickstart/model"
SMALL = ("--max_steps", "2", "--eval_size", "16", "--dataset_size", "64", "--per_device_train_batch_size", "16")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in an empty folder outside the checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_in_a_checkout_the_shipped_files_are_those_at_its_top():
    assert shipped.shipped_folder() == ROOT


def test_in_a_wheel_the_shipped_files_are_inside_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path)
    assert shipped.shipped_folder() == tmp_path.parent
    (tmp_path / "shipped_files").mkdir()
    assert shipped.shipped_folder() == tmp_path / "shipped_files"


def test_path_that_exists_only_among_the_shipped_files_is_taken_from_there(elsewhere):
    assert shipped.with_shipped(MODEL) == str(ROOT / MODEL)
    Path(MODEL).mkdir(parents=True)
    assert shipped.with_shipped(MODEL) == MODEL


@pytest.mark.parametrize("name", ["org/some-model", "", ".", "/nowhere/model"])
def test_path_that_is_in_neither_place_is_left_as_it_is(elsewhere, name):
    assert shipped.with_shipped(name) == name


def test_working_directory_comes_first_for_a_recipe(elsewhere):
    assert find_recipe("quickstart") == find_recipe("recipes/quickstart.yaml") == ROOT / "recipes" / "quickstart.yaml"
    Path("quickstart.yaml").write_text("num_loops: 3\n")
    assert find_recipe("quickstart") == find_recipe("quickstart.yaml") == Path("quickstart.yaml")
    assert find_recipe("recipes/quickstart.yaml") == ROOT / "recipes" / "quickstart.yaml"


def test_working_directory_comes_first_for_a_reward(elsewhere):
    spec = "rewards/arithmetic.py:accuracy"
    assert load_reward(spec)(prompts=["?"], completions=["no number"], answer=["4"]) == [0.0]
    Path("rewards").mkdir()
    Path("rewards/arithmetic.py").write_text("def accuracy(prompts, completions, **kwargs):\n    return [0.5]\n")
    assert load_reward(spec)(prompts=["?"], completions=["no number"], answer=["4"]) == [0.5]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the sources, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    skipped = shutil.ignore_patterns("__pycache__")
    for name in ("looprl", "recipes", "rewards", "requirements"):
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    stale = source / "build/lib/looprl/shipped_files/recipes/removed.yaml"
    stale.parent.mkdir(parents=True)
    stale.touch()
    flags = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    _run(sys.executable, "-m", "pip", "wheel", *flags, "-w", folder, ".", cwd=source)
    return next(folder.glob("looprl-*.whl"))


@pytest.mark.slow
def test_wheel_carries_every_shipped_file_and_nothing_stale(wheel):
    prefix = "looprl/shipped_files/"
    carried = {name.removeprefix(prefix) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(prefix)}
    expected = {
        file.relative_to(ROOT).as_posix()
        for folder in ("recipes", "rewards", "requirements")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert carried == expected
    assert {"recipes/quickstart.yaml", f"{MODEL}/model.safetensors", "rewards/gsm8k.py"} <= carried


@pytest.mark.slow
def test_installed_wheel_copies_a_recipe_and_trains_outside_the_checkout(wheel, tmp_path):
    environment = tmp_path / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    site = next(environment.glob("lib/python*/site-packages"))
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    _run(*pip, "install", "--no-deps", "--no-index", wheel)
    # The packages of this environment, behind the wheel; its .pth files, and so an editable looprl, stay out.
    (site / "these.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    work = tmp_path / "work"
    work.mkdir()
    code = "import looprl.shipped as s; print(s.__file__, s.shipped_folder())"
    assert _run(python, "-c", code, cwd=work).split() == [
        str(site / "looprl" / "shipped.py"),
        str(site / "looprl" / "shipped_files"),
    ]
    looprl = environment / "bin" / "looprl"
    assert "quickstart " in _run(looprl, "recipes", cwd=work)
    _run(looprl, "recipes", "copy", "quickstart", cwd=work)
    output = _run(looprl, "train", "quickstart.yaml", *SMALL, cwd=work)
    assert "pass@1" in output
    assert (work / "runs/quickstart/checkpoints/step-2/model.safetensors").is_file()


def _run(*command, cwd=None):
    """Run a command to its end and return what it prints; it must succeed."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
