"""Settings of `looprl plan`: a training recipe's, for processes that are not there."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch

from looprl.errors import UserError
from looprl.shipped import with_shipped
from looprl.training.config import LoopedGRPOConfig
from looprl.training.zero import STAGES


@dataclass
class PlanConfig(LoopedGRPOConfig):
    """A training recipe's settings, of which `num_processes` counts those of all machines. No process is joined.

    Raises as LoopedGRPOConfig does.
    """

    num_processes: int | None = field(
        default=None, metadata={"help": "Processes that train together, on all machines; by default 1."}
    )
    prompt_length: int | None = field(
        default=None,
        metadata={"help": "Tokens of the longest prompt; by default those of the recipe's prompts, which are read."},
    )
    json: str | None = field(default=None, metadata={"help": "Also write the plan to this file."})

    def __post_init__(self) -> None:
        self.precision_is_asked = self.bf16 is not None or self.fp16
        if self.prompt_length is not None and self.prompt_length < 1:
            raise UserError(f"prompt_length must be at least 1, got {self.prompt_length}")
        super().__post_init__()

    @property
    def world_size(self) -> int:
        """The processes that are planned for."""
        return self.num_processes or 1

    @property
    def sharding(self) -> tuple[int, bool]:
        """The ZeRO stage, 0 without DeepSpeed, and whether the optimizer's state is offloaded."""
        zero = _section(self._deepspeed or {}, "zero_optimization")
        return zero.get("stage", 0), _section(zero, "offload_optimizer").get("device", "none") != "none"

    @property
    def offloads_weights(self) -> bool:
        """Whether ZeRO-3 keeps its shards of the weights in the host's memory."""
        zero = _section(self._deepspeed or {}, "zero_optimization")
        return _section(zero, "offload_param").get("device", "none") != "none"

    @property
    def asked_dtype(self) -> torch.dtype | None:
        """The precision that the recipe loads the weights in, where it says so. UserError where that is none."""
        given = self.model_init_kwargs or {}
        name = str(given.get("dtype") or given.get("torch_dtype") or "auto").removeprefix("torch.")
        dtype = getattr(torch, name, None)
        if name != "auto" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UserError(f"model_init_kwargs: dtype is {name!r}; choose float32, bfloat16 or auto")
        return dtype

    @property
    def shards_weights(self) -> bool:
        return self.sharding[0] == 3

    def _join_processes(self) -> None:
        """Read what DeepSpeed would be told, in its place: bf16 in its file is the recipe's."""
        given = self._deepspeed_settings()
        self._deepspeed = _read(given) if isinstance(given, str) else given
        if self._deepspeed is None and self.world_size > 1:
            raise UserError(f"{self.world_size} processes need zero_stage 1, 2 or 3")
        if self.sharding[0] not in (0, *STAGES):
            raise UserError(f"deepspeed: stage is {self.sharding[0]!r}; a plan needs 0, 1, 2 or 3")
        if _section(self._deepspeed or {}, "bf16").get("enabled") is True:
            self.bf16 = True
        self.deepspeed, self.use_cpu = None, not torch.cuda.is_available()


def _read(file: str) -> dict:
    try:
        settings = json.loads(Path(with_shipped(file)).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"deepspeed: {file} cannot be read as JSON: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(f"deepspeed: {file} holds a {type(settings).__name__}, not a mapping")
    return settings


def _section(settings: dict, name: str) -> dict:
    section = settings.get(name) or {}
    if not isinstance(section, dict):
        raise UserError(f"deepspeed: {name} is {section!r}, not a mapping")
    return section
