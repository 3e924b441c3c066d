"""Where bubblewrap does not work, the log says so once, and programs run all the same."""

import logging

import pytest

from looprl.sandbox import Program, SandboxError, isolation, run_programs
from looprl.sandbox.inside.values import encode
from looprl.sandbox.pool import Pool
from looprl.sandbox.worker import Worker


@pytest.fixture
def without_bubblewrap(tmp_path, monkeypatch):
    isolation.bubblewrap_problem.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield tmp_path
    isolation.bubblewrap_problem.cache_clear()


def run_twice():
    pool = Pool(isolation.start_program_worker, 2)
    try:
        return run_programs([Program("def f(x): return 2 * x", "f", (encode([4]),))] * 2, pool=pool)
    finally:
        pool.close()


def test_missing_bubblewrap_is_warned_of_once(without_bubblewrap, caplog):
    with caplog.at_level(logging.WARNING):
        assert [run.calls for run in run_twice() + run_twice()] == [([8],)] * 4
    (warning,) = caplog.messages
    assert "without bubblewrap (bwrap is not installed)" in warning and "use the network" in warning


def test_bubblewrap_that_does_not_work_is_named_with_its_reason(without_bubblewrap, caplog):
    broken = without_bubblewrap / "bwrap"
    broken.write_text("#!/bin/sh\necho 'no permission to create a namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        assert [run.calls for run in run_twice()] == [([8],)] * 2
    assert "no permission to create a namespace" in caplog.messages[0]


def test_sandbox_that_cannot_start_is_an_error_and_no_score():
    pool = Pool(lambda: Worker(["/nowhere/python"], {}), 1)
    with pytest.raises(SandboxError, match=r"the sandbox cannot be started: .*nowhere"):
        run_programs([Program("def f(x): return x", "f", (encode([1]),))], pool=pool)
