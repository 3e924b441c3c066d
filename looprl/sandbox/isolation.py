"""How the server that runs programs is shut off: by bubblewrap where it works, by limits alone elsewhere.

bubblewrap gives it no network, a read-only system without home directories, a private /tmp in memory, no environment
and a process namespace of its own, in which the server is process 1: no program can kill it, and all end with it.
"""

import functools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from looprl.sandbox.inside.server import remove_folder
from looprl.sandbox.limits import MIB
from looprl.sandbox.worker import Worker

logger = logging.getLogger(__name__)

INSIDE = Path(__file__).resolve().parent / "inside"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
# Isolated from site-packages; not -I, which would ignore the hash seed, and sets must print in one order everywhere.
FLAGS = ("-P", "-s", "-S", "-B")
TMP_BYTES = 64 * MIB
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")


def start_program_worker() -> Worker:
    """Start a server for programs, in bubblewrap where that works; a warning, once, says where it does not."""
    if bubblewrap_problem() is None:
        return Worker([*bubblewrap(), "/inside/programs.py", "/tmp"], ENVIRONMENT)
    return start_unshielded_worker()


def start_unshielded_worker() -> Worker:
    """Start a server for programs that only limits and a process group of its own hold back."""
    folder = tempfile.mkdtemp(prefix="looprl-sandbox-")
    command = [_python(), *FLAGS, str(INSIDE / "programs.py"), folder]
    return Worker(command, ENVIRONMENT, cleanup=lambda: remove_folder(folder))


@functools.cache
def bubblewrap_problem() -> str | None:
    """Return why bubblewrap cannot be used here, None where it can; looked up, and warned of, once per process."""
    problem = _try_bubblewrap()
    if problem is not None:
        logger.warning(
            "Model-written code runs without bubblewrap (%s): limits on time, memory and processes hold, but it can "
            "read what you can read, write where you can write, and use the network. Install bubblewrap, or run in a "
            "container without secrets.",
            problem,
        )
    return problem


def bubblewrap() -> list[str]:
    """Return the command up to the script to run: bwrap, its options, python."""
    system = []
    for path in _SYSTEM:
        if Path(path).is_symlink():
            system += ["--symlink", os.readlink(path), path]
        elif Path(path).is_dir():
            system += ["--ro-bind", path, path]
    python = os.path.realpath(sys.base_prefix)
    if not any(Path(python).is_relative_to(path) for path in _SYSTEM):
        system += ["--ro-bind", python, python]
    variables = [word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)]
    return [
        shutil.which("bwrap") or "bwrap",
        *("--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
        *("--hostname", "sandbox", "--as-pid-1", "--clearenv", *variables),
        *(*system, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind", str(INSIDE), "/inside"),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--", _python(), *FLAGS),
    ]


def _try_bubblewrap() -> str | None:
    if shutil.which("bwrap") is None:
        return "bwrap is not installed"
    try:
        tried = subprocess.run(
            [*bubblewrap(), "-c", "pass"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "bwrap did not start within 20 s"
    return None if tried.returncode == 0 else (tried.stderr.strip() or f"bwrap ended with {tried.returncode}")


def _python() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
