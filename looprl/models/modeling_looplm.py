"""LoopLM: looprl's own looped language model, as a transformers model."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from looprl.models.configuration_looplm import LoopLMConfig
from looprl.models.contract import Family, LoopedForCausalLM
from looprl.models.injection import DecayInjection, make_injection
from looprl.models.kv_bank import KVBank
from looprl.models.layers import Block, ResidualLinear, make_norm, rotary_factors
from looprl.models.loop import LoopContext
from looprl.models.stack import STACK_PARTS, InjectedCore, StackModel


class LoopLMCore(InjectedCore):
    """F: the injection, then the core blocks."""

    def __init__(self, config: LoopLMConfig):
        super().__init__()
        self.injection = make_injection(config.injection, config.hidden_size, config.injection_init)
        first = config.num_prelude_layers
        self.layers = nn.ModuleList(Block(config, first + i) for i in range(config.num_core_layers))


class LoopLMPreTrainedModel(PreTrainedModel):
    """Configuration and weight initialisation, shared by the base model and the model with a head."""

    config: LoopLMConfig
    config_class = LoopLMConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block", "LoopLMCore"]
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            std = self.config.initializer_scale * module.in_features**-0.5
            if isinstance(module, ResidualLinear):
                std *= (2 * self.config.num_hidden_layers) ** -0.5
            init.normal_(module.weight, std=std)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=1 / self.config.embedding_scale)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, DecayInjection):
            init.constant_(module.diagonal_logit, module.diagonal_logit_init)


class LoopLMModel(StackModel, LoopLMPreTrainedModel):
    """Embedding, prelude, core, coda and final norm."""

    def __init__(self, config: LoopLMConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.prelude_layers = nn.ModuleList(Block(config, i) for i in range(config.num_prelude_layers))
        self.core = LoopLMCore(config)
        first = config.num_prelude_layers + config.num_core_layers
        self.coda_layers = nn.ModuleList(Block(config, first + i) for i in range(config.num_coda_layers))
        self.norm = make_norm(config)
        self.post_init()

    def context_at(self, input_ids: Tensor, positions: Tensor, mask: Tensor | None, bank: KVBank | None) -> LoopContext:
        cos, sin = rotary_factors(positions, self.config.head_dim, self.config.rope_theta, self.dtype)
        return LoopContext(cos, sin, mask, bank)


class LoopLMForCausalLM(LoopedForCausalLM, LoopLMPreTrainedModel):
    """LoopLM with its language-model head, tied to the embedding or not."""

    MODEL = LoopLMModel
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    PARTS = STACK_PARTS
    FAMILY = Family(
        title="LoopLM, looprl's own",
        examples=("recipes/quickstart/model",),
        loop="orthogonal, linear, decay or additive injection; zero initial state",
    )
