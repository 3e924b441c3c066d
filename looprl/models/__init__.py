"""Looped models: the contract, LoopLM, and the families looprl loads."""

from looprl.models.checkpoint import ModelError
from looprl.models.configuration_looplm import LoopLMConfig
from looprl.models.configuration_ouro import OuroConfig
from looprl.models.configuration_parcae import ParcaeConfig
from looprl.models.configuration_raven import RavenConfig
from looprl.models.contract import LoopedCausalLMOutput, LoopedForCausalLM, LoopedModel
from looprl.models.modeling_looplm import LoopLMForCausalLM, LoopLMModel
from looprl.models.modeling_ouro import OuroForCausalLM
from looprl.models.modeling_parcae import ParcaeForCausalLM
from looprl.models.modeling_raven import RavenForCausalLM
from looprl.models.registry import FAMILIES, load_model

__all__ = [
    "FAMILIES",
    "LoopLMConfig",
    "LoopLMForCausalLM",
    "LoopLMModel",
    "LoopedCausalLMOutput",
    "LoopedForCausalLM",
    "LoopedModel",
    "ModelError",
    "OuroConfig",
    "OuroForCausalLM",
    "ParcaeConfig",
    "ParcaeForCausalLM",
    "RavenConfig",
    "RavenForCausalLM",
    "load_model",
]
