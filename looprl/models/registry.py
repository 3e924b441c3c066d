"""Which looped-model families looprl knows, and how a checkpoint finds its own."""

from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from looprl.errors import UserError
from looprl.models.configuration_looplm import LoopLMConfig
from looprl.models.contract import LoopedForCausalLM
from looprl.models.modeling_looplm import LoopLMForCausalLM

FAMILIES: dict[str, type[LoopedForCausalLM]] = {LoopLMConfig.model_type: LoopLMForCausalLM}

for _model_type, _model_class in FAMILIES.items():
    AutoConfig.register(_model_type, _model_class.config_class)
    AutoModelForCausalLM.register(_model_class.config_class, _model_class)


class ModelError(UserError):
    """A checkpoint that cannot be used as a looped model."""


def load_model(path_or_name: str, **kwargs: Any) -> LoopedForCausalLM:
    """Load a looped language model from a folder or hub name.

    `kwargs` go to `from_pretrained` (`dtype`, `revision`, ...). Raises ModelError when nothing is there, when
    the model is not of a looped family, when its files cannot be read, or when tensors are missing, unexpected
    or of the wrong shape: nothing is silently left at its random initialisation.
    """
    nothing_there = f"no model at {path_or_name!r}: neither a folder with a readable config.json nor a hub name"
    try:
        settings, _ = PretrainedConfig.get_config_dict(path_or_name)
    except (OSError, ValueError) as error:
        raise ModelError(nothing_there) from error
    if not settings:
        raise ModelError(nothing_there)
    family = FAMILIES.get(settings.get("model_type", ""))
    if family is None:
        raise ModelError(
            f"{path_or_name!r} is of model_type {settings.get('model_type')!r}, which is not a looped model that "
            f"looprl knows (a shared core applied num_loops times). Known families: {', '.join(sorted(FAMILIES))}"
        )
    # mismatched sizes are let through only to be reported below, by name and shape
    kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, loading = family.from_pretrained(path_or_name, **kwargs)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{path_or_name!r} cannot be read as {family.__name__}: {error}") from error
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading.get(what):
            raise ModelError(f"{path_or_name!r} does not fit {family.__name__}: {what} {sorted(loading[what])}")
    return model
