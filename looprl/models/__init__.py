"""Looped models: the contract, LoopLM, and the families looprl loads."""

from looprl.models.checkpoint import ModelError
from looprl.models.configuration_looplm import LoopLMConfig
from looprl.models.contract import LoopedCausalLMOutput, LoopedForCausalLM, LoopedModel
from looprl.models.modeling_looplm import LoopLMForCausalLM, LoopLMModel
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
    "load_model",
]
