"""The pool: warm, side by side, replaced when a worker dies, and gone with its process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from looprl.sandbox import Limits, Program, run_programs
from looprl.sandbox.inside.values import encode
from tests.sandbox.processes import none_is_left_of, server_processes

ISOLATIONS = ["bubblewrap", "limits only"]
HANGS = "def f(x):\n    while True: pass"
ADDS = "def f(x): return x + 1"


def calls(code, *arguments):
    return Program(code, "f", tuple(encode([argument]) for argument in arguments))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_hanging_programs_cost_one_time_limit_and_hold_up_nobody(make_pool, isolation):
    programs = [calls(HANGS if index % 8 == 3 else ADDS, index) for index in range(64)]
    limits = Limits(seconds=3.0)
    start = time.monotonic()
    runs = run_programs(programs, limits, make_pool(isolation, 16))
    assert time.monotonic() - start < limits.seconds + 5
    assert [run.ended for run in runs].count("out of time") == 8
    assert all(run.calls == ([index + 1],) for index, run in enumerate(runs) if index % 8 != 3)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_workers_stay_warm_and_every_program_has_its_own_process(make_pool, isolation):
    pool = make_pool(isolation, 2)
    code = "import os\nleft = []\ndef f(x):\n    left.append(x)\n    return os.getppid(), os.getpid(), len(left)"
    runs = run_programs([calls(code, 1, index) for index in range(20)], pool=pool)
    servers, processes, seen = zip(*[[item for item in call[0][1]] for run in runs for call in run.calls], strict=True)
    assert len(set(servers)) <= 2 and seen == (1, 2) * 20
    assert isolation == "bubblewrap" or len(set(processes)) == 20


def test_answers_come_in_the_order_of_the_programs(make_pool):
    programs = [
        calls(f"import time\ndef f(x):\n    time.sleep({0.02 * (9 - i)})\n    return {i}", 0) for i in range(10)
    ]
    runs = run_programs(programs, pool=make_pool("limits only", 4))
    assert [run.calls for run in runs] == [([i],) for i in range(10)]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_killed_worker_is_replaced_and_its_request_is_run_again(make_pool, isolation):
    pool, before = make_pool(isolation), server_processes()
    assert run_programs([calls(ADDS, 1)], pool=pool)[0].calls == ([2],)
    for process in server_processes() - before:
        os.kill(process, signal.SIGKILL)
    assert run_programs([calls(ADDS, 1)], pool=pool)[0].calls == ([2],)


def test_equal_programs_run_once(make_pool):
    code = "import time\ndef f(x):\n    time.sleep(1)\n    return time.monotonic()"
    first, second, other = run_programs(
        [calls(code, 1), calls(code, 1), calls(code, 2)], pool=make_pool("limits only", 3)
    )
    assert first == second != other


def test_program_must_answer_for_every_input():
    forged = "import os\nos.write(3, b'{\"calls\": [[2]]}')\nos._exit(0)"
    assert run_programs([calls(forged, 1)])[0].calls == ([2],)  # nothing but data: right here, and of no use to it
    assert run_programs([calls(forged, 1, 2)])[0].calls is None


def put_run(queue):
    queue.put(run_programs([calls(ADDS, 1)])[0].calls)


def test_forked_process_starts_workers_of_its_own():
    assert run_programs([calls(ADDS, 1)])[0].calls == ([2],)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=put_run, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=60) == ([2],)
    process.join()
    assert run_programs([calls(ADDS, 1)])[0].calls == ([2],)


def test_workers_end_with_a_process_that_is_killed_in_the_middle():
    before = server_processes()
    script = (
        "from tests.sandbox.test_pool import *\nrun_programs([calls(HANGS, i) for i in range(3)], Limits(seconds=60))"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    until = time.monotonic() + 60
    while len(server_processes() - before) < 6 and time.monotonic() < until:
        time.sleep(0.1)
    assert len(server_processes() - before) >= 6
    process.kill()
    process.wait()
    assert none_is_left_of(before)
