"""Random streams: one for each (seed, step, rank), none of them touching the trainer's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def rollout_seed(seed: int, step: int, rank: int, index: int = 0) -> int:
    """The seed of the rollout that `rank` draws at `step`, in [0, 2^63); index: its number within the step."""
    sequence = np.random.SeedSequence([seed, step, rank], spawn_key=(index,) if index else ())
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def initial_state_seed(seed: int, policy_version: int) -> int:
    """The seed of the initial states drawn with the weights of `policy_version`, in [0, 2^63), on every rank."""
    sequence = np.random.SeedSequence([seed, policy_version], spawn_key=(0, 0))  # two words: a rollout has none or one
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Leave Python's, NumPy's and torch's (CPU and GPU) random states as they were found."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
