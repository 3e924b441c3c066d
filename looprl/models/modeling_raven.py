"""Huginn (Geiping et al., 2025, arXiv:2502.05171) and retrofitted recurrence (McLeish et al., 2025) as one family.

Both inject by a linear map of concat[z, e]. They differ in the block, in the layout of RoPE, and in what Huginn does
between core and coda: it applies the final norm there too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from looprl.models.configuration_raven import RavenConfig, body_of
from looprl.models.contract import Family, LoopedForCausalLM
from looprl.models.injection import LinearInjection
from looprl.models.kv_bank import KVBank
from looprl.models.loop import LoopContext
from looprl.models.published import GatedMLP, RMSNorm
from looprl.models.rope import Rope, rotate, rotate_pairs
from looprl.models.stack import STACK_PARTS, InjectedCore, StackModel


class RavenAttention(nn.Module):
    """Grouped-query attention; Huginn adds a bias to queries and keys, OLMo-2 normalises them over all heads."""

    def __init__(self, config: RavenConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.widths = [heads * config.head_dim for heads in (config.n_heads, *[config.num_key_value_heads] * 2)]
        self.Wqkv = nn.Linear(config.n_embd, sum(self.widths), bias=False)
        self.proj = nn.Linear(self.widths[0], config.n_embd, bias=False)
        self.rotate = rotate_pairs if config.body == "huginn" else rotate
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, config.n_heads, self.head_dim)) if config.qk_bias else None
        normed = config.body == "olmo2"
        self.q_norm = RMSNorm(self.widths[0], config.norm_eps) if normed else nn.Identity()
        self.k_norm = RMSNorm(self.widths[1], config.norm_eps) if normed else nn.Identity()

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        queries, keys, values = self.Wqkv(x).split(self.widths, dim=-1)
        queries, keys, values = (
            each.unflatten(-1, (-1, self.head_dim)) for each in (self.q_norm(queries), self.k_norm(keys), values)
        )
        if self.qk_bias is not None:
            queries, keys = queries + self.qk_bias[0], keys + self.qk_bias[1]
        queries = self.rotate(queries.transpose(1, 2), context.cos, context.sin)
        keys = self.rotate(keys.transpose(1, 2), context.cos, context.sin)
        return self.proj(context.attend(queries, keys, values.transpose(1, 2), self.layer))


class RavenBlock(nn.Module):
    """Attention and feed-forward; where the norms sit is the subclasses' matter."""

    norm_1: nn.Module
    norm_2: nn.Module
    num_norms = 2

    def __init__(self, config: RavenConfig, layer: int):
        super().__init__()
        self.attn = RavenAttention(config, layer)
        self.mlp = GatedMLP(config.n_embd, config.intermediate_size)
        for number in range(1, self.num_norms + 1):
            self.add_module(f"norm_{number}", RMSNorm(config.n_embd, config.norm_eps))


class SandwichBlock(RavenBlock):
    """Huginn: a norm on each sublayer's input and on each residual sum."""

    norm_3: nn.Module
    norm_4: nn.Module
    num_norms = 4

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        x = self.norm_2(x + self.attn(self.norm_1(x), context))
        return self.norm_4(x + self.mlp(self.norm_3(x)))


class PreNormBlock(RavenBlock):
    """Llama: a norm on each sublayer's input."""

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        x = x + self.attn(self.norm_1(x), context)
        return x + self.mlp(self.norm_2(x))


class PostNormBlock(RavenBlock):
    """OLMo-2: a norm on each sublayer's output."""

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        x = x + self.norm_1(self.attn(x, context))
        return x + self.norm_2(self.mlp(x))


BLOCKS: dict[str, type[RavenBlock]] = {"huginn": SandwichBlock, "llama": PreNormBlock, "olmo2": PostNormBlock}


class RavenCore(InjectedCore):
    """F: the linear injection, then the core blocks."""

    def __init__(self, config: RavenConfig):
        super().__init__()
        self.injection = LinearInjection(config.n_embd)
        block, first = BLOCKS[config.body], config.n_layers_in_prelude
        self.layers = nn.ModuleList(block(config, first + i) for i in range(config.n_layers_in_recurrent_block))


class RavenPreTrainedModel(PreTrainedModel):
    """Configuration and weight initialisation, shared by the base model and the model with a head."""

    config: RavenConfig
    config_class = RavenConfig
    base_model_prefix = "model"
    _no_split_modules = ["SandwichBlock", "PreNormBlock", "PostNormBlock", "RavenCore"]
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        stds = self.config.init_values
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=stds["std"])
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=stds["embedding"])
        elif isinstance(module, RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, RavenAttention) and module.qk_bias is not None:
            init.zeros_(module.qk_bias)
        elif isinstance(module, Rope):
            module.reset()
        if isinstance(module, RavenAttention | GatedMLP):
            init.normal_(module.proj.weight, std=stds["out_proj"])


class RavenModel(StackModel, RavenPreTrainedModel):
    """Embedding, prelude, core, coda and final norm."""

    def __init__(self, config: RavenConfig):
        super().__init__(config)
        block = BLOCKS[config.body]
        first_coda = config.n_layers_in_prelude + config.n_layers_in_recurrent_block
        self.embed_tokens = nn.Embedding(config.num_embeddings, config.n_embd)
        self.prelude_layers = nn.ModuleList(block(config, i) for i in range(config.n_layers_in_prelude))
        self.core = RavenCore(config)
        self.coda_layers = nn.ModuleList(block(config, first_coda + i) for i in range(config.n_layers_in_coda))
        self.norm = RMSNorm(config.n_embd, config.norm_eps)
        self.rope = config.rope()
        self.post_init()

    def context_at(self, input_ids: Tensor, positions: Tensor, mask: Tensor | None, bank: KVBank | None) -> LoopContext:
        cos, sin = self.rope(positions, self.dtype)
        return LoopContext(cos, sin, mask, bank)

    def coda(self, state: Tensor, context: LoopContext) -> Tensor:
        return super().coda(self.norm(state) if self.config.body == "huginn" else state, context)


class RavenForCausalLM(LoopedForCausalLM, RavenPreTrainedModel):
    """Huginn or a retrofitted model, with its language-model head."""

    MODEL = RavenModel
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    PARTS = STACK_PARTS
    RENAMES = {
        "transformer.wte.": "model.embed_tokens.",
        "transformer.prelude.": "model.prelude_layers.",
        "transformer.adapter.": "model.core.injection.adapter.",
        "transformer.core_block.": "model.core.layers.",
        "transformer.coda.": "model.coda_layers.",
        "transformer.ln_f.": "model.norm.",
    }
    RECOMPUTED = ("freqs_cis",)
    FAMILY = Family(
        title="Huginn; retrofitted recurrence (Llama and OLMo-2 bodies)",
        examples=("tomg-group-umd/huginn-0125", "smcleish/Recurrent-*"),
        loop="linear injection of concat[z, e]; zero or drawn initial state",
    )

    @classmethod
    def read_config(cls, settings: Mapping[str, Any], tensor_names: Iterable[str]) -> RavenConfig:
        return super().read_config({**settings, "body": body_of(tensor_names)}, tensor_names)
