"""Trainings on a tape, in a pair of processes that starts once for many of them, or in the test's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tests.training.zero.jobs import CONTROLLED, EMPTY, ENDED, IDLE, LARGE, PAIRWISE, SEVERAL_LOOPS, SKIPPING
from tests.training.zero.taped import Job, train

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def torchrun():
    """Run a file of this folder in two processes, to its end, which must come within the seconds given."""

    def run(file, *arguments, seconds=300):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        command += [Path(__file__).parent / file, *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)

    return run


@pytest.fixture(scope="session")
def in_two_processes(torchrun, tmp_path_factory):
    """Train jobs one after the other and return, by job, what each rank found."""

    def run(jobs, seconds=300):
        folder = tmp_path_factory.mktemp("pair")
        (folder / "jobs.json").write_text(json.dumps([vars(job) for job in jobs]))
        done = torchrun("taped.py", folder / "jobs.json", folder, seconds=seconds)
        assert done.returncode == 0, done.stderr[-4000:]
        return {
            job: [torch.load(folder / f"{job.name}.rank{rank}.pt", weights_only=False) for rank in (0, 1)]
            for job in jobs
        }

    return run


@pytest.fixture(scope="session")
def pair(in_two_processes, tmp_path_factory):
    """What each rank found, by job, for all jobs of the suite."""
    folder = tmp_path_factory.getbasetemp()
    found = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "pair.pt"
    with FileLock(f"{found}.lock"):  # one of several test processes trains, and all read what it found
        if not found.exists():
            jobs = [*PAIRWISE, *IDLE, *EMPTY, *LARGE, *SEVERAL_LOOPS, *SKIPPING, ENDED, CONTROLLED]
            torch.save(in_two_processes(jobs), found)
    return torch.load(found, weights_only=False)


@pytest.fixture(scope="session")
def in_one_process(tmp_path_factory):
    """Train a job here, without DeepSpeed; each is trained once."""
    found = {}

    def run(**settings):
        job = Job(processes=1, **settings)
        if job not in found:
            found[job] = train(job, tmp_path_factory.mktemp("single"))
        return found[job]

    return run
