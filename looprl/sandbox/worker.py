"""One fork server as seen from outside: send it a request, get the answer of the process that it forked."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from looprl.errors import UserError
from looprl.sandbox.inside.server import STOP
from looprl.sandbox.limits import Limits

GRACE = 3.0  # seconds that a server has beyond a process's time limit, to kill it and to say so


class SandboxError(UserError):
    """The sandbox itself does not work; no program is to blame."""


class WorkerDied(Exception):
    """The server ended without a reply."""


@dataclass(frozen=True)
class Reply:
    """What a process answered before it ended. Only an answer of one that `finished` counts."""

    ended: str
    output: bytes

    @property
    def finished(self) -> bool:
        """Whether the process ended by itself, in time, and left no process behind."""
        return self.ended == "finished"


class Worker:
    """A running fork server. One request at a time."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], cleanup: Callable[[], None] = lambda: None
    ) -> None:
        """Start `command`, a server whose standard input is its control socket. `cleanup` is called by `close`."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._cleanup = cleanup
        with theirs:
            try:
                self._server = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                raise SandboxError(f"the sandbox cannot be started: {error}") from error
        self.retired = False

    def run(self, request: bytes, limits: Limits) -> Reply:
        """Have one request processed. Raises WorkerDied; the worker is then of no more use."""
        until = time.monotonic() + limits.seconds + GRACE
        channel, theirs = socket.socketpair()
        try:
            with channel:
                with theirs:
                    socket.send_fds(self._control, [json.dumps(asdict(limits)).encode()], [theirs.fileno()])
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: the reply says how
                    channel.settimeout(max(until - time.monotonic(), 0.01))
                    channel.sendall(request)
                    channel.shutdown(socket.SHUT_WR)
                output = self._read(channel, until, limits.output_bytes)
            self._control.settimeout(max(until - time.monotonic(), 0.01))
            message = self._control.recv(1 << 16)
        except OSError as error:
            self.retired = True
            raise WorkerDied from error
        if not message:
            self.retired = True
            raise WorkerDied
        reply = json.loads(message)
        self.retired = reply["retires"]
        if output is None:
            return Reply("too much output", b"")
        return Reply(reply["ended"], output)

    def close(self) -> None:
        """End the server and everything in it."""
        self._control.close()
        try:
            self._server.wait(1)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
        self._cleanup()

    def forget(self) -> None:
        """Let go of the server, which ends when nobody holds its control socket any more."""
        self._control.close()

    def _read(self, channel: socket.socket, until: float, most: int) -> bytes | None:
        """The answer up to its end; None, and the process is told to stop, where it is longer than `most` bytes."""
        output = bytearray()
        while True:
            channel.settimeout(max(until - time.monotonic(), 0.01))
            try:
                part = channel.recv(1 << 16)
            except ConnectionResetError:  # it ended without having read its request
                return bytes(output)
            if not part:
                return bytes(output)
            output += part
            if len(output) > most:
                self._control.send(STOP)
                return None
