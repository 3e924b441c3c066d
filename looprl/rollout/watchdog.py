"""An engine in a process of its own may end or hang, and vLLM 0.32's client would then wait forever."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

_SECONDS_BETWEEN_LOOKS = 0.5


@contextmanager
def watched(client: Any, processes: Sequence[BaseProcess], seconds: float) -> Iterator[None]:
    """Around calls to an engine: have them raise RuntimeError once its process has ended or they take too long.

    client: vLLM's, whose pending calls are made to fail. processes: those the engine runs in, none where that is this
    one; they are killed when they take longer than `seconds`.
    """
    over = threading.Event()

    def watch() -> None:
        deadline = time.monotonic() + seconds
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            if time.monotonic() >= deadline:
                error = RuntimeError(f"the engine's process did not answer within {seconds:.0f} s")
            elif not all(process.is_alive() for process in processes):
                error = RuntimeError("the engine's process has ended")
            else:
                continue
            for process in processes:
                process.kill()
            _fail_pending(client, error)

    if processes:
        threading.Thread(target=watch, name="looprl-engine-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _fail_pending(client: Any, error: Exception) -> None:
    """Whichever of its two ways to wait vLLM's client is in: for outputs, or for the result of a call by name."""
    client.outputs_queue.put_nowait(error)
    for future in list(client.utility_results.values()):
        if not future.done():
            future.set_exception(error)
