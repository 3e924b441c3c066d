"""A looprl command in its own process: its exit code and output, and that it never outlives its parent."""

import fcntl
import os
import subprocess
import sys
import time

import psutil
import pytest

from looprl.child import run_command

PARENT = """
import os, subprocess, sys
child = "import sys, time; from looprl.child import die_with; die_with(int(sys.argv[1])); print('up'); time.sleep(120)"
process = subprocess.Popen([sys.executable, "-u", "-c", child, str(os.getpid())], stdout=subprocess.PIPE, text=True)
process.stdout.readline()
print(process.pid, flush=True)
process.wait()
"""


@pytest.fixture
def lock(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    yield handle
    os.close(handle)


def is_running(process_id):
    return psutil.pid_exists(process_id) and psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE


def test_exit_code_and_output_are_those_of_the_command(tmp_path, lock):
    assert run_command(["--version"], tmp_path / "log", lock, lambda: None) == 0
    assert (tmp_path / "log").read_text().startswith("looprl ")
    assert run_command(["trian"], tmp_path / "log", lock, lambda: None) == 2
    assert "Did you mean 'train'?" in (tmp_path / "log").read_text()


def test_child_dies_with_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert is_running(child)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_child_whose_parent_is_gone_already_does_nothing():
    code = "from looprl.child import die_with; die_with(1 << 22); print('lived on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0 and "is gone" in done.stderr and "lived on" not in done.stdout


def test_an_interruption_ends_the_child_and_the_lock_is_free_again(tmp_path, lock):
    fcntl.flock(lock, fcntl.LOCK_EX)
    started = []

    def interrupt():
        started.extend(child.pid for child in psutil.Process().children() if "looprl.child" in child.cmdline())
        raise KeyboardInterrupt

    # far from its end after a second
    arguments = ["train", "recipes/quickstart.yaml", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(KeyboardInterrupt):
        run_command(arguments, tmp_path / "log", lock, interrupt)
    assert len(started) == 1 and not is_running(started[0])
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_UN)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_lock_lasts_as_long_as_the_child(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    other = os.open(tmp_path, os.O_RDONLY)
    refused = []

    def drop_own_handle():
        nonlocal handle
        if handle is not None:
            os.close(handle)
            handle = None
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            refused.append(True)
        raise KeyboardInterrupt

    arguments = ["train", "recipes/quickstart.yaml", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(KeyboardInterrupt):
        run_command(arguments, tmp_path / "log", handle, drop_own_handle)
    assert refused
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
