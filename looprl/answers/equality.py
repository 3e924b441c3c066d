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


def are_equal(pairs: Iterable[tuple[str, str]]) -> Mapping[tuple[str, ...], bool]:
    """Say of each (gold, answer) pair of LaTeX formulas whether they are equal; not in time, or not at all: False."""
    return _verdicts(pairs)


def is_formula(golds: Iterable[str]) -> Mapping[str, bool]:
    """Say of each LaTeX formula whether math-verify can read it."""
    return {gold: readable for (gold,), readable in _verdicts((gold,) for gold in golds).items()}


def _verdicts(requests: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], bool]:
    different = list(dict.fromkeys(requests))
    replies = _pool().run([json.dumps(request).encode() for request in different], LIMITS)
    return {
        request: reply.finished and reply.output == b"true" for request, reply in zip(different, replies, strict=True)
    }


@functools.cache
def _pool() -> Pool:
    return Pool(_start_worker, min(4, os.cpu_count() or 1))


def _start_worker() -> Worker:
    folder = tempfile.mkdtemp(prefix="looprl-formulas-")
    command = [sys.executable, "-m", "looprl.answers.math_server", folder]
    return Worker(command, os.environ, cleanup=lambda: remove_folder(folder))
