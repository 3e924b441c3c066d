"""Comparing formulas by math-verify in bounded time, from any thread and any process."""

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping

from looprl.sandbox.inside.server import remove_folder
from looprl.sandbox.limits import MIB, Limits
from looprl.sandbox.pool import Pool
from looprl.sandbox.worker import Worker

# A usual pair takes some 50 ms; what takes a hundred times as long is no answer.
LIMITS = Limits(seconds=5.0, memory_bytes=2048 * MIB)


def are_equal(pairs: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], bool | None]:
    """Say of each (gold, answer) pair of LaTeX formulas whether they are equal; None where the gold cannot be read.

    A pair that is not compared in time is not equal.
    """
    different = list(dict.fromkeys(pairs))
    replies = _pool().run([json.dumps(pair).encode() for pair in different], LIMITS)
    return {
        pair: json.loads(reply.output) if reply.finished else False
        for pair, reply in zip(different, replies, strict=True)
    }


@functools.cache
def _pool() -> Pool:
    return Pool(_start_worker, min(4, os.cpu_count() or 1))


def _start_worker() -> Worker:
    folder = tempfile.mkdtemp(prefix="looprl-formulas-")
    command = [sys.executable, "-m", "looprl.answers.math_server", folder]
    return Worker(command, os.environ, cleanup=lambda: remove_folder(folder))
