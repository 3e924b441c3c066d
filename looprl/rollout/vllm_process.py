"""What vLLM 0.32 does to the process that it runs in, kept within bounds.

Importing this module, before vLLM, sets the environment that looprl's in-process engine needs.
"""

import logging
import multiprocessing
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any
from unittest.mock import patch

import torch

# Read by vLLM when it is imported and when the engine starts: one process, no pinning of threads to cores, no
# warnings about the tokenizer that looprl keeps out of it.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
OWN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
if not torch.cuda.is_available():
    OWN_PROCESS["TORCH_COMPILE_DISABLE"] = "1"  # as the engine's stance within this process
# What vLLM logs while it is imported comes before it reads that level.
logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())


@contextmanager
def contained_start(own_process: bool) -> Iterator[list[BaseProcess]]:
    """While vLLM starts: hide its deprecation warnings; afterwards undo what it changed for everybody else.

    Yields a list that holds, once vLLM has started, the processes that it runs in.

    own_process: the engine is to run in a process of its own, which inherits the environment set here.
    """
    set_num_threads = torch.set_num_threads  # on a CPU, vLLM puts a function that does nothing in its place
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE")  # torchrun's, which vLLM overwrites with its own
    started: list[BaseProcess] = []
    others = multiprocessing.active_children()
    try:
        with warnings.catch_warnings(), patch.dict(os.environ, OWN_PROCESS if own_process else {}):
            warnings.simplefilter("ignore", FutureWarning)
            yield started
        started += [process for process in multiprocessing.active_children() if process not in others]
    finally:
        torch.set_num_threads = set_num_threads
        if local_ranks is not None:
            os.environ["LOCAL_WORLD_SIZE"] = local_ranks


@contextmanager
def kept_process_group(is_ours: bool) -> Iterator[None]:
    """While vLLM stops: it destroys the default process group, so hold on to one that was there before it."""
    destroy = torch.distributed.destroy_process_group

    def destroy_others(group: Any = None) -> None:
        if group is not None:
            destroy(group)

    torch.distributed.destroy_process_group = destroy_others if is_ours else destroy
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy
