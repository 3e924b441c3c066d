"""Ouro (Zhu et al., 2025, arXiv:2510.25741): the whole stack of layers is the loop, its final norm included.

Nothing is injected: the embedding is the initial state, and a loop is a function of the state alone. A gate reads each
loop's state and says how likely a token is to stop there; all loops are always run.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from looprl.models.configuration_ouro import OuroConfig
from looprl.models.contract import Family, LoopedForCausalLM, LoopedModel
from looprl.models.kv_bank import KVBank
from looprl.models.loop import Core, LoopContext
from looprl.models.published import RMSNorm
from looprl.models.rope import Rope, rotate


class OuroAttention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, config: OuroConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        width, kv_width = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        queries, keys, values = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = rotate(queries, context.cos, context.sin), rotate(keys, context.cos, context.sin)
        return self.o_proj(context.attend(queries, keys, values, self.layer))


class OuroMLP(nn.Module):
    """down(silu(gate) * up)."""

    def __init__(self, config: OuroConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class OuroBlock(nn.Module):
    """A norm on each sublayer's input, and one (`_2`) on its output before it is added."""

    def __init__(self, config: OuroConfig, layer: int):
        super().__init__()
        self.self_attn = OuroAttention(config, layer)
        self.mlp = OuroMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm_2 = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm_2 = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        x = x + self.input_layernorm_2(self.self_attn(self.input_layernorm(x), context))
        return x + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(x)))


class OuroCore(Core):
    """F: every layer, then the norm. It does not read the injected input."""

    def __init__(self, config: OuroConfig):
        super().__init__()
        self.layers = nn.ModuleList(OuroBlock(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def loop(self, state: Tensor, injected: Tensor, *context: Any) -> Tensor:
        for layer in self.layers:
            state = layer(state, LoopContext(*context))
        return self.norm(state)


class OuroPreTrainedModel(PreTrainedModel):
    """Configuration and weight initialisation, shared by the base model and the model with a head."""

    config: OuroConfig
    config_class = OuroConfig
    base_model_prefix = "model"
    _no_split_modules = ["OuroBlock", "OuroCore"]
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, std=self.config.initializer_range)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, Rope):
            module.reset()


class OuroModel(LoopedModel, OuroPreTrainedModel):
    """Embedding, core and exit gate."""

    def __init__(self, config: OuroConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.num_embeddings, config.hidden_size)
        self.core = OuroCore(config)
        self.early_exit_gate = nn.Linear(config.hidden_size, 1)
        self.rope = Rope(config.inverse_frequencies)
        self.post_init()

    def context_at(self, input_ids: Tensor, positions: Tensor, mask: Tensor | None, bank: KVBank | None) -> LoopContext:
        cos, sin = self.rope(positions, self.dtype)
        return LoopContext(cos, sin, mask, bank)

    def prelude(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, context: LoopContext | None = None
    ) -> Tensor:
        return self.embed_tokens(input_ids)

    def initial_state(self, injected: Tensor) -> Tensor:
        """The embedding itself: nothing else carries the input."""
        return injected

    def coda(self, state: Tensor, context: LoopContext) -> Tensor:
        """The state itself: the norm is part of the loop."""
        return state

    def exit_gate(self, states: Tensor) -> Tensor:
        return self.early_exit_gate(states).squeeze(-1).movedim(0, -1)


class OuroForCausalLM(LoopedForCausalLM, OuroPreTrainedModel):
    """Ouro with its language-model head."""

    MODEL = OuroModel
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    PARTS = {
        "model.embed_tokens.": "prelude",
        "model.core.": "core",
        "model.early_exit_gate.": "head",
        "lm_head.": "head",
    }
    RENAMES = {"model.layers.": "model.core.layers.", "model.norm.": "model.core.norm."}
    FAMILY = Family(
        title="Ouro",
        examples=("ByteDance/Ouro-1.4B", "ByteDance/Ouro-2.6B", "ByteDance/Ouro-1.4B-Thinking"),
        loop="the whole stack with its final norm, nothing injected; starts from the embedding",
        no_exit_gate="",
        untrained={
            "model.early_exit_gate.": "the loss does not reach the gate, save estimator rltt's with loop_weights exit"
        },
        unreplayed={"model.embed_tokens.": "nothing is injected, so a replayed loop does not reach the embedding"},
    )
