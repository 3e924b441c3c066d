"""A looprl command in a process of its own, which never outlives the one that started it.

Ablations train each run in such a process: an engine starts once in a process, and no run inherits anything.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from looprl.cli import USER_ERROR, main

_PR_SET_PDEATHSIG = 1
_SECONDS_TO_END = 10
_RANK_0_FIRST = 5  # seconds, so that what is wrong in all ranks is said by the one that has the terminal, and only once


def run_command(arguments: Sequence[str], log: Path, lock: int, while_running: Callable[[], object]) -> int:
    """Run `looprl ARGUMENTS` to its end and return its exit code; what it prints goes to `log`.

    lock: an open file that the child holds too, so that a lock on it lasts as long as either process.
    while_running: called about once a second. An exception here, Ctrl-C too, ends the child first.
    """
    command = [sys.executable, "-m", "looprl.child", str(os.getpid()), *arguments]
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=(lock,)
        ) as process,
    ):
        try:
            while True:
                try:
                    return process.wait(timeout=1)
                except subprocess.TimeoutExpired:
                    while_running()
        except BaseException:
            _end(process)
            raise


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that happens (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")


# vLLM's worker processes import this module again, under another name.
if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    code = main(sys.argv[2:])
    if code == USER_ERROR and os.environ.get("RANK", "0") != "0":
        time.sleep(_RANK_0_FIRST)
    sys.exit(code)
