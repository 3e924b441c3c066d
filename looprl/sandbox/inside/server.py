"""A fork server: every request gets a process of its own, with limits, and nothing of it stays behind.

The server is started once, with whatever the requests need already imported. Its standard input is a SOCK_SEQPACKET
socket: one message per request, JSON limits with a file descriptor beside them. The forked process reads the request
from that descriptor and answers into it, so the server itself never holds a request or an answer, and a process that
is forked later finds none in its memory. Then the server kills what is left and replies how the process ended.

A server that a process could have tampered with (files left, limits or priority of the server changed) says so in its
reply and ends; the other side starts a new one.
"""

import contextlib
import ctypes
import json
import os
import resource
import secrets
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TICK = 0.05  # seconds between two looks at a running process
CHANNEL = 3  # the file descriptor of a process's request and answer
STOP = b"stop"
_SET_DUMPABLE, _SET_CHILD_SUBREAPER = 4, 36


def serve(handle: Callable[[socket.socket], None], folder: str) -> None:
    """Serve until the control socket is closed, then remove `folder`.

    `handle` gets the channel of one request, in a new process in an empty folder below `folder`.
    """
    try:
        _serve(handle, socket.socket(fileno=0), folder)
    finally:
        remove_folder(folder)


def read_all(channel: socket.socket) -> bytes:
    """Read a request to its end."""
    parts = []
    while part := channel.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def remove_folder(folder: str) -> None:
    """Remove a folder as far as the system allows, however deep it is and whatever its permissions are.

    What stands in a subfolder is first moved to the top, so that no path grows too long.
    """
    with contextlib.suppress(OSError):
        while entries := list(os.scandir(folder)):
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                for inner in list(os.scandir(entry.path)):
                    if inner.is_dir(follow_symlinks=False):
                        os.chmod(inner.path, 0o700)
                    os.rename(inner.path, os.path.join(folder, f"moved-{secrets.token_hex(8)}"))
                os.rmdir(entry.path)
        os.rmdir(folder)


def _serve(handle: Callable[[socket.socket], None], control: socket.socket, folder: str) -> None:
    with contextlib.suppress(OSError):  # where memory runs out, the kernel ends these processes and not the trainer
        Path("/proc/self/oom_score_adj").write_text("1000")
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)  # a forked process may neither trace this one nor open its descriptors
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    untouched = _own_state()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not message:
            return
        if not descriptors:  # a stop that came after its process had ended
            continue
        ended = _run_one(handle, control, descriptors[0], json.loads(message), folder)
        retires = not _is_clean(folder) or _own_state() != untouched
        try:
            control.send(json.dumps({"ended": ended, "retires": retires}).encode())
        except BrokenPipeError:  # the other side is gone
            return
        if retires:
            return


def _run_one(
    handle: Callable[[socket.socket], None], control: socket.socket, channel: int, limits: dict[str, Any], folder: str
) -> str:
    started = time.monotonic()
    own_folder = tempfile.mkdtemp(dir=folder)
    process = os.fork()
    if process == 0:
        _be_the_process(handle, channel, limits, own_folder)
    os.close(channel)
    try:
        ended = _watch(process, control, started, limits)
    finally:
        _kill_all()
        stayed = os.listdir(folder) == [os.path.basename(own_folder)]
        remove_folder(own_folder)
    return ended if stayed or ended != "finished" else "left its folder"


def _be_the_process(
    handle: Callable[[socket.socket], None], channel: int, limits: dict[str, Any], own_folder: str
) -> None:
    status = 1
    try:
        os.setsid()
        os.dup2(channel, CHANNEL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.closerange(CHANNEL + 1, 4096)
        os.chdir(own_folder)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for name, most in _resource_limits(limits):
            hard = resource.getrlimit(name)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(name, (most, most))
        handle(socket.socket(fileno=CHANNEL))
        status = 0
    finally:
        os._exit(status)


def _resource_limits(limits: dict[str, Any]) -> list[tuple[int, int]]:
    chosen = [
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, int(limits["seconds"]) + 1),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ]
    if os.getppid() == 1:  # elsewhere the limit counts all processes of the user, so that the server counts instead
        chosen.append((resource.RLIMIT_NPROC, limits["processes"] + 1))
    return chosen


def _watch(process: int, control: socket.socket, started: float, limits: dict[str, Any]) -> str:
    handle = os.pidfd_open(process)
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        waiting.register(control, select.POLLIN | select.POLLHUP)
        while True:
            left = started + limits["seconds"] - time.monotonic()
            ready = [descriptor for descriptor, _ in waiting.poll(1000 * max(min(TICK, left), 0))]
            if handle in ready:
                return _how_it_ended(process)
            if control.fileno() in ready:  # told to stop, or the other side is gone
                return "stopped"
            if left <= 0:
                return "out of time"
            if len(_descendants()) > limits["processes"]:
                return "too many processes"
    finally:
        os.close(handle)


def _how_it_ended(process: int) -> str:
    status = os.waitpid(process, 0)[1]
    if _descendants():
        return "left processes behind"
    if os.WIFSIGNALED(status):
        return "out of time" if os.WTERMSIG(status) == signal.SIGXCPU else f"killed by signal {os.WTERMSIG(status)}"
    return "finished" if os.WEXITSTATUS(status) == 0 else f"exit status {os.WEXITSTATUS(status)}"


def _descendants() -> list[int]:
    """Return the running processes below this one; a zombie runs no more."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            except OSError:  # it has just ended
                continue
            if state not in "ZX":
                parents[int(entry)] = int(parent)
    found, new = [], [os.getpid()]
    while new:
        new = [process for process, parent in parents.items() if parent in new]
        found += new
    return found


def _kill_all() -> None:
    """Kill and reap every descendant. Those whose parents died have become children of this process."""
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        if os.getpid() == 1:
            _kill(-1)
        else:
            for process in _descendants():
                _kill(process)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            time.sleep(0.001)
        except ChildProcessError:
            return
    sys.exit("processes that cannot be killed")


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _own_state() -> tuple[Any, ...]:
    """What a process of the same user could change about this one."""
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    return limits, os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)


def _is_clean(folder: str) -> bool:
    return not os.listdir(folder)
