"""Joining the processes that a launcher started, through accelerate 1.15.

A launcher (looprl's own, torchrun, `accelerate launch`, `deepspeed`) says in the environment how many there are.
"""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from looprl.errors import UserError
from looprl.training.zero import skip_shared_memory_build

ACCELERATE_VERSION = "1.15"
_Result = TypeVar("_Result")


def launched_processes() -> int | None:
    """How many processes the launcher started in all; None without a launcher."""
    size = os.environ.get("WORLD_SIZE")
    return None if size is None or "LOCAL_RANK" not in os.environ else int(size)


def join_processes(timeout: timedelta) -> None:
    """Make this process one of those that the launcher started, with the collectives that DeepSpeed needs.

    Later calls change nothing. UserError where accelerate has already been set up for something else, as by an
    Accelerator() of the script's own.
    """
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    logging.getLogger("accelerate.accelerator").addFilter(_is_no_false_alarm)
    if torch.cuda.is_available():
        state = PartialState(timeout=timeout)
    else:
        skip_shared_memory_build()
        state = PartialState(backend="gloo", timeout=timeout)
    check_processes(state)


def check_processes(state: PartialState) -> None:
    """Raise UserError unless the trainer sees every process that the launcher started."""
    launched = launched_processes() or 1
    if state.num_processes != launched:
        raise UserError(
            f"the launcher started {launched} processes, but the trainer sees {state.num_processes}: each would train "
            "a model of its own. Make LoopedGRPOConfig before anything else that uses accelerate or transformers' "
            "trainer, with zero_stage set"
        )


def from_main_process(call: Callable[[], _Result]) -> _Result:
    """What `call` gives the main process, or the UserError that it raises there, in every process; all have to ask."""
    outcome: list[Any] = [None, None]  # result and error
    if PartialState().is_main_process:
        try:
            outcome[0] = call()
        except UserError as error:
            outcome[1] = error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def _is_no_false_alarm(record: logging.LogRecord) -> bool:
    """transformers' trainer counts micro-batches itself, and tells accelerate of one for each update."""
    return "Gradient accumulation steps mismatch" not in record.getMessage()


def configured(accelerator_config: Any) -> Any:
    """Accelerator settings that leave the processes joined as they are."""
    if accelerator_config is None or isinstance(accelerator_config, dict):
        return {**(accelerator_config or {}), "use_configured_state": True}
    raise UserError("accelerator_config must be a mapping where several processes train")
