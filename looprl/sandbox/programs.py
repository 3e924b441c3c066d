"""Running model-written functions: what each call returned, as data that nothing has been executed to read."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from looprl.sandbox.isolation import start_program_worker
from looprl.sandbox.limits import Limits
from looprl.sandbox.pool import Pool
from looprl.sandbox.worker import Reply

# More than there are processors: a program that hangs or sleeps must not hold up the others.
WORKERS = 16
DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Program:
    """A function and what it is called with: `inputs` holds the encoded arguments (`values.encode`) of every call."""

    code: str
    entry_point: str
    inputs: tuple[Any, ...]


@dataclass(frozen=True)
class Run:
    """How a program ended, and one entry per call: `[encoded value]`, or None where it raised.

    `calls` is None where the program did not come to its end, or reported anything but one entry per call.
    """

    ended: str
    calls: tuple[Any, ...] | None


@functools.cache
def program_pool() -> Pool:
    """The workers of this process."""
    return Pool(start_program_worker, WORKERS)


def run_programs(programs: Sequence[Program], limits: Limits = DEFAULT_LIMITS, pool: Pool | None = None) -> list[Run]:
    """Run every program on all of its inputs, each in a process of its own, side by side; equal programs run once.

    Raises SandboxError where the sandbox cannot be started.
    """
    requests = [
        json.dumps({"code": program.code, "entry_point": program.entry_point, "inputs": program.inputs}).encode()
        for program in programs
    ]
    different = list(dict.fromkeys(requests))
    replies = dict(zip(different, (pool or program_pool()).run(different, limits), strict=True))
    return [_read(program, replies[request]) for program, request in zip(programs, requests, strict=True)]


def _read(program: Program, reply: Reply) -> Run:
    if not reply.finished:
        return Run(reply.ended, None)
    try:
        answer = json.loads(reply.output)
    except (ValueError, RecursionError):
        return Run("an answer that is not one", None)
    if isinstance(answer, dict) and "failed" in answer:
        return Run(f"failed to load: {answer['failed']!s:.60}", None)
    calls = answer.get("calls") if isinstance(answer, dict) else None
    if not isinstance(calls, list) or len(calls) != len(program.inputs) or not all(map(_is_call, calls)):
        return Run("an answer that is not one", None)
    return Run("finished", tuple(calls))


def _is_call(call: Any) -> bool:
    return call is None or (isinstance(call, list) and len(call) == 1)
