"""The README keeps its word: its script runs, its length is bounded, its files exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_script_trains(tmp_path):
    (script,) = (
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "LoopedGRPOTrainer" in block
    )
    assert len(script.strip().splitlines()) <= 25
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "train.py").write_text(f"{script}\nprint('steps', trainer.state.global_step)\n")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "steps 3" in done.stdout


def test_it_is_under_150_lines():
    assert len(README.splitlines()) < 150


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"(?:looprl|recipes|rewards|tests|requirements)/[\w/.]*\w", README)))
)
def test_every_path_it_names_exists(path):
    assert (ROOT / path).exists()
