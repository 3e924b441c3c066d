"""Which looped-model families looprl knows, and how a checkpoint finds its own.

In a process that imports this module, looprl's classes answer for these model types, also in transformers' `Auto`
classes, whether or not transformers has some of its own.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.initialization import no_init_weights

from looprl.models.checkpoint import Checkpoint, ModelError, check_fit, read_checkpoint, read_header, stripped_name
from looprl.models.contract import LoopedForCausalLM
from looprl.models.modeling_looplm import LoopLMForCausalLM
from looprl.models.modeling_ouro import OuroForCausalLM
from looprl.models.modeling_parcae import ParcaeForCausalLM
from looprl.models.modeling_raven import RavenForCausalLM

_KNOWN = (LoopLMForCausalLM, RavenForCausalLM, OuroForCausalLM, ParcaeForCausalLM)
FAMILIES: dict[str, type[LoopedForCausalLM]] = {family.config_class.model_type: family for family in _KNOWN}
REFUSED = {
    "loopcoder": "its second loop reads the first one's keys and values, so a loop is no map of its state alone",
    "hrm": "its two modules run at different rates under a prefix mask, so a loop is no map of its state alone",
    "loopformer": "its loop is conditioned on the step, so one replayed loop does not stand for all of them",
}
PARCAE_KEYS = {"recurrent_iteration_method", "n_layers_in_recurrent_block", "injection_type", "init_strategy"}
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

for _model_type, _family in FAMILIES.items():
    AutoConfig.register(_model_type, _family.config_class, exist_ok=True)
    AutoModelForCausalLM.register(_family.config_class, _family, exist_ok=True)
    if _family.RENAMES:
        renamings = [WeightRenaming(f"^{re.escape(old)}", f"^{re.escape(new)}") for old, new in _family.RENAMES.items()]
        register_checkpoint_conversion_mapping(_family.__name__, renamings, overwrite=True)


def load_model(path_or_name: str, **kwargs: Any) -> LoopedForCausalLM:
    """Load a looped language model from a folder or hub name, in its published format; no code in it is run.

    `kwargs` go to `from_pretrained` (`dtype`, `revision`, ...). Raises ModelError when nothing is there, when
    the model is not of a looped family, when its files cannot be read, or when tensors are missing, unexpected
    or of the wrong shape: nothing is silently left at its random initialisation.
    """
    hub_options = {key: kwargs.pop(key) for key in HUB_OPTIONS if key in kwargs}
    settings = read_settings(path_or_name, **hub_options)
    family = find_family(settings, path_or_name)
    unreadable = f"{path_or_name!r} cannot be read as {family.__name__}"
    try:
        checkpoint = read_checkpoint(path_or_name, **hub_options).stripped(family.STRIPPED)
        config = family.read_config(settings, checkpoint.tensors)
        tensors = _tensors(checkpoint, family, config)
        model = family.from_pretrained(None, config=config, state_dict=tensors, **kwargs)
    except (OSError, ValueError, RuntimeError, ModelError) as error:
        raise ModelError(f"{unreadable}: {error}") from error
    model.name_or_path = model.config.name_or_path = path_or_name
    with suppress(OSError):  # few models have the file; without it the configuration's own is kept
        model.generation_config = GenerationConfig.from_pretrained(path_or_name, **hub_options)
    return model


def read_settings(path_or_name: str, **hub_options: Any) -> dict[str, Any]:
    """The `config.json` of a folder or hub name. ModelError when there is none that can be read."""
    nothing_there = f"no model at {path_or_name!r}: neither a folder with a readable config.json nor a hub name"
    try:
        settings, _ = PretrainedConfig.get_config_dict(path_or_name, **hub_options)
    except (OSError, ValueError) as error:
        raise ModelError(nothing_there) from error
    if not settings or not isinstance(settings, dict):
        raise ModelError(nothing_there)
    return settings


def check_exit_gate(family: type[LoopedForCausalLM], setting: str) -> None:
    """ModelError, naming the setting that asks for it, unless the family has an exit gate."""
    if why_not := family.FAMILY.no_exit_gate:
        raise ModelError(f"{setting} needs a model with an exit gate; {family.FAMILY.title}: {why_not}")


def read_outline(path_or_name: str, **kwargs: Any) -> tuple[PretrainedConfig, torch.dtype, bool]:
    """What is known of a model before its weights are: its configuration, and the precision that it would load in.

    Also whether files of weights were at hand, of which the names are read: where they are not, what only tensors tell
    (such as the body of a `huginn_raven`) is the configuration's guess. `kwargs` and ModelError as in `load_model`.
    """
    settings = read_settings(path_or_name, **{key: kwargs[key] for key in HUB_OPTIONS if key in kwargs})
    family = find_family(settings, path_or_name)
    stored = read_header(path_or_name)
    try:
        if stored:
            config = family.read_config(settings, [stripped_name(name, family.STRIPPED) for name in stored])
        else:
            config = family.config_class.from_dict(dict(settings))
    except ValueError as error:
        raise ModelError(f"{path_or_name!r} cannot be read as {family.__name__}: {error}") from error
    dtype = config.dtype or next(iter(stored.values()), None) or torch.float32
    return config, dtype, bool(stored)


def find_family(settings: Mapping[str, Any], path_or_name: str) -> type[LoopedForCausalLM]:
    """The family of a `config.json`. ModelError on any other, with the reason where the loop itself is it."""
    model_type = settings.get("model_type", "")
    if not model_type and (settings.get("_class_name") == "ParcaeConfig" or settings.keys() >= PARCAE_KEYS):
        model_type = ParcaeForCausalLM.config_class.model_type
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    names = [str(model_type), *map(str, settings.get("architectures") or [])]
    for part, reason in REFUSED.items():
        if any(part in name.lower() for name in names):
            raise ModelError(f"{path_or_name!r} ({', '.join(names)}) cannot be trained by replaying a loop: {reason}")
    raise ModelError(
        f"{path_or_name!r} is of model_type {settings.get('model_type')!r}, which is not a looped model that "
        f"looprl knows (a shared core applied num_loops times). Known families: {', '.join(sorted(FAMILIES))}"
    )


def _tensors(checkpoint: Checkpoint, family: type[LoopedForCausalLM], config: PretrainedConfig) -> dict[str, Tensor]:
    """The tensors that `family` loads, under their published names, after a check that they are exactly its own."""
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in family.RECOMPUTED}
    with torch.device("meta"), no_init_weights():
        own_tensors = family(config).state_dict()
    expected = {family.published_name(name): tuple(tensor.shape) for name, tensor in own_tensors.items()}
    if config.tie_word_embeddings:
        head, embedding = family.published_name(HEAD), family.published_name(EMBEDDING)
        stored = tensors.pop(head, None)
        del expected[head]
        if stored is not None and not torch.equal(tensors.setdefault(embedding, stored), stored):
            raise ModelError(
                f"{checkpoint.files[head]}: tensor {head!r} differs from {embedding!r}, to which the configuration "
                "ties it"
            )
    check_fit(Checkpoint(tensors, checkpoint.files), expected, family.__name__)
    return tensors
