"""Which looped-model families looprl knows, and how a checkpoint finds its own."""

from typing import Any

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
    the model is not of a looped family, or when tensors are missing, unexpected or of the wrong shape: nothing
    is silently left at its random initialisation.
    """
    try:
        settings, _ = PretrainedConfig.get_config_dict(path_or_name)
    except (OSError, ValueError) as error:
        raise ModelError(f"no model at {path_or_name!r}: neither a folder with config.json nor a hub name") from error
    family = FAMILIES.get(settings.get("model_type", ""))
    if family is None:
        raise ModelError(
            f"{path_or_name!r} is of model_type {settings.get('model_type')!r}, which is not a looped model that "
            f"looprl knows (a shared core applied num_loops times). Known families: {', '.join(sorted(FAMILIES))}"
        )
    model, loading = family.from_pretrained(path_or_name, output_loading_info=True, **kwargs)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if loading.get(what):
            raise ModelError(f"{path_or_name!r} does not fit {family.__name__}: {what} {sorted(loading[what])}")
    return model
