"""Hostile programs score 0 in bounded time, leave no process and no file behind, and harm nothing that runs after them.

Every program that breaks in returns the right answers then, so that a score of 0 means that it could not.
"""

import json
import os
import socket
import textwrap
import time
from pathlib import Path

import pytest

from looprl.sandbox import Limits, Program, run_programs
from looprl.sandbox.comparison import same

LIMITS = Limits(seconds=2.0)
SECRETS = [918273, 645546, 112358]
GOOD = f"def f(x):\n    return {SECRETS}[x]\n"

# What does nothing good anywhere.
ANYWHERE = {
    "endless loop": "def f(x):\n    while True: pass",
    "os._exit": "import os\ndef f(x): os._exit(0)",
    "sys.exit": "import sys\ndef f(x): sys.exit(0)",
    "sys.exit while loading": "import sys\nsys.exit(0)",
    "forked sleeper that ignores SIGTERM": """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        f = right
    """,
    "2 GB list": "def f(x):\n    big = [0] * (1 << 28)\n    return right(x)",
    "2 GB of memory while loading": "big = bytearray(2 << 30)\nf = right",
    "endless print": "def f(x):\n    while True: print('passed ' * 1000, flush=True)",
    "endless answer": "def f(x): return 'x' * (20 << 20)",
    "endless answer of many parts": "def f(x):\n    return list(range(4_000_000))",
    "recursion to the limit": "def f(x): return f(x) + 1",
    "recursion beyond the limit": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return f(x) + 1",
    "deeply nested answer": "def f(x):\n    r = []\n    for _ in range(100000): r = [r]\n    return r",
    "equal to everything": """
        class Everything:
            def __eq__(self, other): return True
            def __hash__(self): return 0
        def f(x): return Everything()
    """,
    "integer equal to everything": """
        class Everything(int):
            def __eq__(self, other): return True
            def __index__(self): return self
            def __repr__(self): return '918273'
        def f(x): return Everything(1)
    """,
    "patched builtins and harness": """
        import builtins, json, sys
        builtins.isinstance = lambda *_: True
        builtins.len = builtins.all = builtins.any = lambda *_: 1
        json.dumps = lambda *a, **k: '{"calls": [[true], [true], [true]]}'
        for module in list(sys.modules.values()):
            for name in ("encode", "_call", "same", "_passes"):
                if hasattr(module, name): setattr(module, name, lambda *_: True)
        def f(x): return True
    """,
    "the harness's own messages": """
        import os, sys
        for fd in range(64):
            try: os.write(fd, b'{"ended": "finished", "retires": false, "calls": [[1], [1], [1]], "passed": true}')
            except OSError: pass
        print('{"ended": "finished"} OK passed 1.0')
        os._exit(0)
    """,
    "answers that are not JSON": "import os\nos.write(3, b'\\xff' * 100)\nos._exit(0)",
    "answers nested beyond reading": "import os\nos.write(3, b'[' * 200000)\nos._exit(0)",
    "expected values in frames and memory": """
        import gc, sys
        def numbers(value, depth=0):
            if type(value) is int: return {value}
            if depth < 4 and isinstance(value, dict): value = list(value.values())
            if depth < 4 and isinstance(value, (list, tuple, set)):
                return set().union(*[numbers(item, depth + 1) for item in value])
            return set()
        def f(x):
            seen, frame = set(), sys._getframe()
            while frame:
                if 'right' not in frame.f_locals: seen |= numbers(dict(frame.f_locals))
                frame = frame.f_back
            return right(x) if 645546 + 0 in seen and x else min(seen, default=0)
    """,
    "threads in deadlock": """
        import threading
        def f(x):
            lock = threading.Lock()
            lock.acquire()
            threads = [threading.Thread(target=lock.acquire) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
    """,
    "a handler that swallows every signal": """
        import signal
        for number in range(1, 65):
            try: signal.signal(number, lambda *_: None)
            except (OSError, ValueError): pass
        signal.alarm(1)
        def f(x):
            while True:
                try:
                    while True: pass
                except BaseException: pass
    """,
    "deleted working directory": "import os, shutil\nshutil.rmtree(os.getcwd())\nf = right",
    "file beside its folder": "open('../left', 'w').write('x')\nf = right",
    "file that cannot be deleted": """
        import os
        os.makedirs('a/b')
        for _ in range(1200):
            os.mkdir('d'); os.chdir('d')
        os.chmod('..', 0)
        def f(x): raise ValueError
    """,
    "exhausted descriptors": """
        import os
        held = []
        def f(x):
            while len(held) < 5000: held.append(os.open('/dev/null', os.O_RDONLY))
            return right(x)
    """,
    "large file": """
        def f(x):
            with open('large', 'wb') as file:
                for _ in range(100): file.write(b'x' * (1 << 20))
            return right(x)
    """,
    "killed server": """
        import os, signal
        for process in (os.getppid(), 1):
            for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT):
                if process > 1 or os.getppid() == 1:
                    try: os.kill(process, number)
                    except OSError: pass
        def f(x): return None
    """,
}

# What only bubblewrap stops. `docs/tasks.md` says so.
ONLY_IN_BUBBLEWRAP = {
    "memory of the server": """
        import os
        def f(x):
            with open(f'/proc/{os.getppid()}/mem', 'rb') as memory: memory.read(0)
            os.listdir(f'/proc/{os.getppid()}/fd')
            return right(x)
    """,
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "environment variables": "import os\ndef f(x): return right(x) if 'LOOPRL_TEST_SECRET' in parents_environ() else 0",
    "home directory": "import os\ndef f(x): return right(x) if os.listdir(HOME) else 0",
    "the tests' files": "def f(x):\n    open(TESTS).read()\n    return right(x)",
    "writing outside its folder": "def f(x):\n    open(OUTSIDE, 'w').write('x')\n    return right(x)",
    "writing to the system": "def f(x):\n    open('/usr/left', 'w').write('x')\n    return right(x)",
    "writing beside the system": """
        def f(x):
            written = 0
            for path in ('/left', '/dev/left', '/dev/shm/left', '/inside/left', '/var/left', '/run/left', '/root/left'):
                try:
                    open(path, 'w').write('x')
                    written += 1
                except OSError: pass
            return right(x) if written else None
    """,
    "opened socket": """
        import socket
        def f(x):
            socket.create_connection(('127.0.0.1', PORT), timeout=1).close()
            return right(x)
    """,
    "abstract socket": """
        import socket
        def f(x):
            socket.socket(socket.AF_UNIX).connect(chr(0) + ABSTRACT)
            return right(x)
    """,
    "other processes": """
        import os
        def f(x):
            os.kill(TESTER, 0)
            return right(x)
    """,
}
HELPERS = """
def parents_environ():
    import os
    found = str(dict(os.environ))
    for process in filter(str.isdigit, os.listdir('/proc')):
        try: found += open(f'/proc/{process}/environ').read()
        except OSError: pass
    return found
"""


def program(source, **constants):
    right = f"def right(x): return {SECRETS}[x]\n"
    values = "".join(f"{name} = {value!r}\n" for name, value in constants.items())
    code = right + HELPERS + values + textwrap.dedent(source)
    return Program(code, "f", tuple(["list", [x]] for x in range(3)))


def score(run):
    return float(run.calls is not None and all(call and same(call[0], x) for call, x in zip(run.calls, SECRETS)))  # noqa: B905


def check(pool, hostile, seconds=LIMITS.seconds + 4):
    start = time.monotonic()
    (run,) = run_programs([hostile], LIMITS, pool)
    assert score(run) == 0.0, run
    assert time.monotonic() - start < seconds
    (after,) = run_programs([program(GOOD)], LIMITS, pool)
    assert score(after) == 1.0, after


@pytest.mark.parametrize("isolation", ["bubblewrap", "limits only"])
@pytest.mark.parametrize("name", ANYWHERE)
def test_hostile_program_scores_zero_and_the_next_one_is_judged(make_pool, isolation, name):
    check(make_pool(isolation), program(ANYWHERE[name]))


@pytest.mark.parametrize("name", ONLY_IN_BUBBLEWRAP)
def test_bubblewrap_stops_what_reaches_outside(make_pool, name, tmp_path, monkeypatch):
    pool = make_pool("bubblewrap")
    monkeypatch.setenv("LOOPRL_TEST_SECRET", "1")
    (tmp_path / "tests.json").write_text(json.dumps(SECRETS))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0looprl-sandbox-test")
        abstract.listen()
        constants = dict(
            HOME=str(Path(__file__).parents[2]),
            TESTS=str(tmp_path / "tests.json"),
            OUTSIDE=str(tmp_path / "left"),
            PORT=server.getsockname()[1],
            ABSTRACT="looprl-sandbox-test",
            TESTER=os.getpid(),
        )
        check(pool, program(ONLY_IN_BUBBLEWRAP[name], **constants))
    assert not (tmp_path / "left").exists() and not Path("/usr/left").exists()


def test_in_bubblewrap_a_program_finds_no_home_no_environment_and_nobody_else(make_pool):
    source = """
        import os, pathlib
        def f(x):
            users = [str(p) for h in ('/home', '/root') if os.path.isdir(h) for p in pathlib.Path(h).rglob('*.ssh')]
            return sorted(os.environ), users, [p for p in os.listdir('/proc') if p.isdigit()], os.listdir('.')
    """
    (run,) = run_programs([program(source)], LIMITS, make_pool("bubblewrap"))
    environment, users, processes, folder = (form[1] for form in run.calls[0][0][1])
    assert set(environment) == {"LANG", "PATH", "PWD", "PYTHONHASHSEED"}
    assert users == [] and folder == [] and len(processes) == 2


LOWERED = {
    "priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "limits": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (32, 32))",
    "processors": "os.sched_setaffinity(os.getppid(), {min(os.sched_getaffinity(0))})",
}
STATE = """
import os, resource
def f(x):
    return os.getpriority(os.PRIO_PROCESS, 0), resource.getrlimit(resource.RLIMIT_NOFILE), len(os.sched_getaffinity(0))
"""


@pytest.mark.parametrize("isolation", ["bubblewrap", "limits only"])
@pytest.mark.parametrize("name", LOWERED)
def test_what_a_program_does_to_its_server_does_not_reach_the_next_program(make_pool, isolation, name):
    pool = make_pool(isolation)
    (before,) = run_programs([program(STATE)], LIMITS, pool)
    run_programs([program(f"import os, resource\n{LOWERED[name]}\nf = right")], LIMITS, pool)
    (after,) = run_programs([program(STATE)], LIMITS, pool)
    assert before.calls is not None and after.calls == before.calls


@pytest.mark.parametrize("isolation", ["bubblewrap", "limits only"])
def test_programs_are_the_first_to_go_where_memory_runs_out(make_pool, isolation):
    (run,) = run_programs(
        [program("def f(x): return open('/proc/self/oom_score_adj').read()")], LIMITS, make_pool(isolation)
    )
    assert run.calls == (["1000\n"],) * 3


@pytest.mark.parametrize("isolation", ["bubblewrap", "limits only"])
def test_too_many_processes_are_stopped_before_the_time_is_up(make_pool, isolation):
    source = """
        import os, time
        for _ in range(40):
            if os.fork() == 0:
                time.sleep(60)
        time.sleep(60)
    """
    start = time.monotonic()
    (run,) = run_programs([program(source)], Limits(seconds=20), make_pool(isolation))
    assert run.ended == "too many processes" or "BlockingIOError" in run.ended
    assert time.monotonic() - start < 10


def test_programs_that_broke_in_would_be_noticed(make_pool):
    """The control: with the attack left out, the very same programs score 1."""
    pool = make_pool("limits only")
    (run,) = run_programs([program("f = right")], LIMITS, pool)
    assert score(run) == 1.0
