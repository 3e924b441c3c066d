"""Time and memory of calls, compared fairly: interleaved repeats, medians with their range, allocator peaks."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler tells stderr of every start and stop

Call = Callable[[], object]


@dataclass(frozen=True)
class Seconds:
    """Repeats of one call."""

    median: float
    fastest: float
    slowest: float

    @classmethod
    def of(cls, repeats: list[float]) -> "Seconds":
        return cls(statistics.median(repeats), min(repeats), max(repeats))


def interleaved_seconds(calls: Mapping[str, Call], repeats: int, device: str) -> dict[str, Seconds]:
    """Time each call `repeats` times, in rounds over all of them, so that a slow minute slows them alike.

    On `cuda` the clock is a pair of CUDA events; elsewhere the wall clock. Each call runs once before, untimed.
    """
    measured: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            measured[name].append(_seconds(call, device))
    return {name: Seconds.of(values) for name, values in measured.items()}


def _seconds(call: Call, device: str) -> float:
    if device != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()
    call()
    end_event.record()
    torch.cuda.synchronize()
    return start_event.elapsed_time(end_event) / 1000


def peak_bytes(call: Call, device: str) -> int:
    """Most bytes that the allocator held for tensors made during the call, beyond those that were there before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    held = highest = 0
    for change in _allocations(recorded):
        held += change
        highest = max(highest, held)
    return highest


def _allocations(recorded: profile) -> Iterator[int]:
    """Signed sizes of the CPU allocator's events, in order of time (`[memory]` in torch 2.13's kineto results)."""
    profiler: Any = recorded.profiler
    results = profiler.kineto_results
    memory = [event for event in results.events() if event.name() == "[memory]"]
    yield from (event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns()))
