"""Every touch of DeepSpeed 0.19: settings, the core as a ZeRO-3 leaf, gathered weights, what its optimizers hold."""

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.zero.partition_parameters import GatheredParameters
from deepspeed.utils import set_z3_leaf_modules
from torch import Tensor, nn

from looprl.models import LoopedForCausalLM
from looprl.shipped import with_shipped

DEEPSPEED_VERSION = "0.19"
STAGES = (1, 2, 3)
FILES = "recipes/deepspeed/zero{stage}.json"
Settings = dict[str, Any]

# DeepSpeed 0.19 calls collectives by the names that torch 2.13 is about to drop.
warnings.filterwarnings("ignore", message=r"`torch\.distributed\.", category=FutureWarning)


def zero_settings(stage: int, offload_optimizer: bool = False) -> Settings:
    """DeepSpeed's settings of a ZeRO stage, as in `recipes/deepspeed/`; optionally with its optimizer on the CPU.

    DeepSpeed's own Adam for the CPU is compiled at its first use; without a GPU torch's does the same there.
    """
    settings = json.loads(Path(with_shipped(FILES.format(stage=stage))).read_text(encoding="utf-8"))
    if offload_optimizer:
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        settings["zero_force_ds_cpu_optimizer"] = torch.cuda.is_available()
    return settings


def skip_shared_memory_build() -> None:
    """Keep DeepSpeed from compiling its collectives in shared memory for a CPU, which takes minutes: gloo does."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def keep_core_whole(model: LoopedForCausalLM) -> None:
    """Have ZeRO-3 gather the core as one: the adjoint's products then run within one gather, whatever their number.

    To be called before DeepSpeed takes the model over, and only where one loop is recorded: after the backward of a
    leaf's last call DeepSpeed takes its gradients for complete, and silently drops those of the earlier calls.
    """
    set_z3_leaf_modules(model, [type(model.model.core)])


def is_sharded(parameter: nn.Parameter) -> bool:
    """Whether ZeRO-3 holds the parameter in shards."""
    return hasattr(parameter, "ds_tensor")


def gathered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and whole values of the parameters, a shared one once; each is gathered when its turn comes.

    Every process has to run through all of them, since gathering is a collective.
    """
    for name, parameter in model.named_parameters():
        with GatheredParameters([parameter], enabled=is_sharded(parameter)):
            yield name, parameter.detach()


def overwrite(model: nn.Module, other: nn.Module) -> None:
    """Give the parameters the values of another model of the same class; every process has to."""
    for (_, value), parameter in zip(gathered(other), model.parameters(), strict=True):
        with torch.no_grad(), GatheredParameters([parameter], modifier_rank=0, enabled=is_sharded(parameter)):
            parameter.copy_(value)


def parameter_count(model: nn.Module) -> int:
    """Parameters of the whole model, a shared one once."""
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())


def initialized(model: LoopedForCausalLM, stage: int, offload_optimizer: bool = False) -> Any:
    """A DeepSpeed engine with the settings of `zero_settings` that owns the model, outside of any trainer."""
    settings = zero_settings(stage, offload_optimizer)
    settings = {name: value for name, value in settings.items() if name not in ("bf16", "fp16")}
    settings = _without_auto(settings) | {"train_micro_batch_size_per_gpu": 1}
    settings["bf16"] = {"enabled": model.dtype == torch.bfloat16}
    keep_core_whole(model)
    optimizer = torch.optim.AdamW(model.parameters())
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]


def _without_auto(settings: Settings) -> Settings:
    """The settings that do not wait for transformers' trainer to fill them in."""
    nested = {name: _without_auto(value) if isinstance(value, dict) else value for name, value in settings.items()}
    return {name: value for name, value in nested.items() if value != "auto"}


def before_each_step(engine: Any, call: Callable[[], object]) -> None:
    """Have `call` run before each step of a DeepSpeed engine, which accelerate makes part of its backward call."""
    step = engine.step

    def call_and_step(*args: Any, **kwargs: Any) -> None:
        call()
        step(*args, **kwargs)

    engine.step = call_and_step


def skipped_update(engine: Any) -> bool:
    """Whether DeepSpeed left out its last update, the norm of all processes' gradients not being finite."""
    return not engine.was_step_applied()


def gradients_held(optimizer: Any) -> list[Tensor]:
    """Gradients that ZeRO's optimizer keeps outside the parameters' `.grad`."""
    kept = [*optimizer.averaged_gradients.values(), *getattr(optimizer, "all_grad_tensors", {}).values()]
    return [gradient for group in kept if group is not None for gradient in group if gradient is not None]


def master_weights(optimizer: Any) -> list[Tensor]:
    """This process's shard of the weights that ZeRO's optimizer updates."""
    of_zero3 = getattr(optimizer, "fp32_partitioned_groups_flat", None)
    return list(optimizer.single_partition_of_fp32_groups if of_zero3 is None else of_zero3)
