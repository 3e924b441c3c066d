"""Warm workers, shared by all threads of a process: a batch of requests costs no start of an interpreter each."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from looprl.sandbox.limits import Limits
from looprl.sandbox.worker import Reply, Worker, WorkerDied

_POOLS: "weakref.WeakSet[Pool]" = weakref.WeakSet()


class Pool:
    """Up to `size` workers, started when they are needed and kept until the process ends."""

    def __init__(self, start: Callable[[], Worker], size: int) -> None:
        self._start, self._size = start, size
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._reset()
        _POOLS.add(self)
        atexit.register(self.close)

    def run(self, requests: Sequence[bytes], limits: Limits) -> list[Reply]:
        """Process requests side by side; the replies come in their order.

        A worker that dies is replaced and the request tried once more; if that one dies too, the request is to blame.
        """
        if not requests:
            return []
        with ThreadPoolExecutor(min(self._size, len(requests))) as threads:
            return list(threads.map(lambda request: self._run_one(request, limits), requests))

    def close(self) -> None:
        """End all idle workers."""
        for worker in self._idle:  # told first, so that they end side by side
            worker.forget()
        while self._idle:
            self._idle.pop().close()

    def _run_one(self, request: bytes, limits: Limits) -> Reply:
        with self._places:
            for _ in range(2):
                worker = self._take()
                try:
                    return worker.run(request, limits)
                except WorkerDied:
                    continue
                finally:
                    self._give_back(worker)
        return Reply("took its server down", b"")

    def _take(self) -> Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = self._start()
        with self._lock:
            self._workers.add(worker)
        return worker

    def _give_back(self, worker: Worker) -> None:
        if worker.retired:
            worker.close()
            return
        with self._lock:
            self._idle.append(worker)

    def _reset(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self._size)

    def _after_fork(self) -> None:
        for worker in self._workers:  # those of the parent process, which may be busy there
            worker.forget()
        self._workers.clear()
        self._reset()


def _forget_workers_of_parent() -> None:
    for pool in list(_POOLS):
        pool._after_fork()


os.register_at_fork(after_in_child=_forget_workers_of_parent)
