"""`looprl` in several processes on this machine, one for each rank, started and watched by torchrun's agent.

Rank 0 has the terminal; what the others print is kept, and shown where one of them fails. As soon as one ends with an
error the agent ends the others, so that none waits in a collective for a rank that is gone.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from looprl.errors import UserError

_SHOWN_LINES = 40
_TALKATIVE = (  # of signals and failed ranks, at length
    "torch.distributed.elastic",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
)
_SECONDS_TO_SAVE = 600  # after SIGTERM or Ctrl-C; a rank that outlives a failed one has 30, as it may hang


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run `looprl ARGUMENTS` in `processes` ranks; see `run_ranks`. No rank outlives this process, even if killed."""
    return run_ranks(("-m", "looprl.child", str(os.getpid()), *arguments), processes)


def run_ranks(arguments: Sequence[str], processes: int) -> int:
    """Run `python ARGUMENTS` in `processes` ranks to their end and return the exit code.

    That is 0, or the code of the rank that failed first, 1 where a signal ended it. KeyboardInterrupt on Ctrl-C, which
    the ranks have then had too; UserError when there is no first process to start.
    """
    if processes < 1:
        raise UserError(f"num_processes must be at least 1, got {processes}")
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="looprl-ranks-") as logs:
        others = {rank: Std.ALL for rank in range(1, processes)}
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="looprl",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            shutdown_timeout=int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SECONDS_TO_SAVE)),
            logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=others),
        )
        try:
            elastic_launch(config, sys.executable)(*arguments)
        except SignalException as ended:
            if ended.sigval == signal.SIGINT:
                raise KeyboardInterrupt from ended
            return 128 + ended.sigval
        except ChildFailedError as failed:
            rank, failure = failed.get_first_failure()
            _show(rank, failure, Path(logs))
            return max(failure.exitcode, 1)
    return 0


def _show(rank: int, failure: ProcessFailure, logs: Path) -> None:
    how = f"exit code {failure.exitcode}" if failure.exitcode > 0 else f"signal {failure.signal_name()}"
    for file in sorted(logs.glob(f"*/attempt_0/{rank}/stderr.log")):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
        print("\n".join(f"[rank {rank}] {line}" for line in lines), file=sys.stderr)
    print(f"rank {rank} ended with {how}; the others were stopped", file=sys.stderr)
