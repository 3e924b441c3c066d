"""Pools of one kind of isolation each, and a look at the processes that they leave."""

import pytest

from looprl.sandbox.isolation import bubblewrap_problem, start_program_worker, start_unshielded_worker
from looprl.sandbox.pool import Pool
from tests.sandbox.processes import none_is_left_of, server_processes

STARTERS = {"bubblewrap": start_program_worker, "limits only": start_unshielded_worker}


@pytest.fixture
def make_pool():
    """Make a pool of an isolation and a size; it is closed after the test, which must leave no process."""
    pools, before = [], server_processes()

    def make(isolation, size=1):
        if isolation == "bubblewrap" and bubblewrap_problem():
            pytest.skip(f"bubblewrap: {bubblewrap_problem()}")
        pools.append(Pool(STARTERS[isolation], size))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    assert none_is_left_of(before)
