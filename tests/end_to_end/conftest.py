"""`looprl` as a user runs it: a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def looprl():
    """Run a command to its end; it must succeed."""

    def run(*arguments):
        command = [sys.executable, "-m", "looprl", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=540)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def start_looprl():
    """Start a command and return its process."""

    def start(*arguments):
        command = [sys.executable, "-m", "looprl", *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start
