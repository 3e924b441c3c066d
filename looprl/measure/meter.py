"""Per-step measurements: seconds by phase, counts, means and maxima, handed over once a step."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class StepMeter:
    """Collects what happens between two logs.

    `phase(name)` adds seconds; `count(name, n)` adds; `mean(name, total, n)` averages over n; `maximum(name, x)`
    keeps the largest. Of several processes, seconds are averaged and everything else is taken together.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._means: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._maxima: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside, GPU work included, to `time/<name>`."""
        start = _now()
        try:
            yield
        finally:
            self.count(f"time/{name}", _now() - start)

    @contextmanager
    def remainder(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside, less those of the phases inside, to `time/<name>`."""
        before = self.seconds()
        with self.phase(name):
            yield
            inside = self.seconds() - before
        self.count(f"time/{name}", -inside)

    def seconds(self) -> float:
        """Seconds in all phases since the last flush."""
        return sum(value for name, value in self._sums.items() if name.startswith("time/"))

    def count(self, name: str, amount: float) -> None:
        self._sums[name] += amount

    def mean(self, name: str, total: float, weight: float) -> None:
        self._means[name][0] += total
        self._means[name][1] += weight

    def maximum(self, name: str, value: float) -> None:
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def state(self) -> dict[str, dict]:
        """Everything since the last flush, for `restore`."""
        means = {name: list(pair) for name, pair in self._means.items()}
        return {"sums": dict(self._sums), "means": means, "maxima": dict(self._maxima)}

    def restore(self, state: dict[str, dict]) -> None:
        """Continue from what `state` gave."""
        self.__init__()  # type: ignore[misc]
        self._sums.update(state["sums"])
        self._means.update(state["means"])
        self._maxima.update(state["maxima"])

    def flush(self, gather: Callable[[list[Any]], list[Any]] = list) -> dict[str, float]:
        """Everything since the last flush, and start anew.

        gather: brings the lists of all processes together, in each of them (`accelerate.utils.gather_object`).
        """
        meters = gather([(dict(self._sums), dict(self._means), dict(self._maxima))])
        self.__init__()  # type: ignore[misc]
        everywhere = StepMeter()
        for sums, means, maxima in meters:
            for name, amount in sums.items():
                everywhere.count(name, amount / len(meters) if name.startswith("time/") else amount)
            for name, (total, weight) in means.items():
                everywhere.mean(name, total, weight)
            for name, value in maxima.items():
                everywhere.maximum(name, value)
        values = dict(everywhere._sums) | everywhere._maxima
        return values | {name: total / weight for name, (total, weight) in everywhere._means.items() if weight}


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
