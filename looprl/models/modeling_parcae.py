"""Parcae (SandyResearch/parcae-*): a diagonal decay injects the input, and tables add to the values by token.

Queries and keys are normalised after RoPE. The state is the raw residual stream of the core; a linear map takes it to
the coda.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from looprl.models.configuration_parcae import ParcaeConfig
from looprl.models.contract import Family, LoopedForCausalLM, at_least_fp32
from looprl.models.injection import AddInjection, LinearInjection
from looprl.models.kv_bank import KVBank
from looprl.models.loop import LoopContext
from looprl.models.published import RMSNorm
from looprl.models.rope import Rope, rotate_pairs
from looprl.models.stack import STACK_PARTS, InjectedCore, StackModel

GATE_WIDTH = 32  # how much of the normed input a value gate reads


class DiagonalInjection(nn.Module):
    """exp(-dt A) z + dt B e, the discretised decay of a state-space model: dt = softplus(dt_bias), A = exp(A_log)."""

    def __init__(self, width: int):
        super().__init__()
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.B = nn.Parameter(torch.zeros(width, width))

    def forward(self, state: Tensor, injected: Tensor) -> Tensor:
        step = F.softplus(self.dt_bias)
        return state * torch.exp(-step * self.A_log.exp()) + step * F.linear(injected, self.B)


class ParcaeAttention(nn.Module):
    """Grouped-query attention; a gate says how much of its table of token values each head adds."""

    def __init__(self, config: ParcaeConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.clip, self.qk_norm = config.clip_qkv, config.qk_norm
        width, kv_width = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.c_q = nn.Linear(config.n_embd, width, bias=False)
        self.c_k = nn.Linear(config.n_embd, kv_width, bias=False)
        self.c_v = nn.Linear(config.n_embd, kv_width, bias=False)
        self.c_proj = nn.Linear(width, config.n_embd, bias=False)
        heads = config.num_attention_heads
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, heads, self.head_dim)) if config.qk_bias else None
        gated = layer in config.value_gates
        self.ve_gate = nn.Linear(GATE_WIDTH, config.num_key_value_heads, bias=False) if gated else None
        self.table = config.value_layers.index(layer) if layer in config.value_layers else None

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        queries, keys, values = (
            project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.c_q, self.c_k, self.c_v)
        )
        if self.table is not None:
            assert context.token_values is not None and self.ve_gate is not None
            share = 2 * torch.sigmoid(self.ve_gate(x[..., :GATE_WIDTH]))
            values = values + share[..., None] * context.token_values[self.table].unflatten(-1, (-1, self.head_dim))
        if self.clip is not None:
            queries, keys, values = (each.clamp(-self.clip, self.clip) for each in (queries, keys, values))
        if self.qk_bias is not None:
            queries, keys = queries + self.qk_bias[0], keys + self.qk_bias[1]
        queries, keys = (rotate_pairs(each.transpose(1, 2), context.cos, context.sin) for each in (queries, keys))
        if self.qk_norm:
            queries, keys = (F.rms_norm(each, (self.head_dim,)) for each in (queries, keys))
        return self.c_proj(context.attend(queries, keys, values.transpose(1, 2), self.layer))


class ParcaeMLP(nn.Module):
    """proj(relu(fc x)^2 / 2)."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.fc = nn.Linear(width, inner, bias=False)
        self.proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(0.5 * F.relu(self.fc(x)).square())


class ParcaeBlock(nn.Module):
    """A norm on each sublayer's input."""

    def __init__(self, config: ParcaeConfig, layer: int, inner: int):
        super().__init__()
        self.attn = ParcaeAttention(config, layer)
        self.mlp = ParcaeMLP(config.n_embd, inner)
        self.norm_1, self.norm_2 = RMSNorm(config.n_embd, config.norm_eps), RMSNorm(config.n_embd, config.norm_eps)

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        x = x + self.attn(self.norm_1(x), context)
        return x + self.mlp(self.norm_2(x))


class ParcaeCore(InjectedCore):
    """F: the injection, then the core blocks."""

    def __init__(self, config: ParcaeConfig):
        super().__init__()
        kinds = {"diagonal": DiagonalInjection, "linear": LinearInjection, "add": lambda _: AddInjection()}
        self.injection = kinds[config.injection_type](config.n_embd)
        first, inner = config.n_layers_in_prelude, config.recurrent_intermediation_embedding_dimension
        self.layers = nn.ModuleList(
            ParcaeBlock(config, first + i, inner) for i in range(config.n_layers_in_recurrent_block)
        )


class ParcaePreTrainedModel(PreTrainedModel):
    """Configuration and weight initialisation, shared by the base model and the model with a head."""

    config: ParcaeConfig
    config_class = ParcaeConfig
    base_model_prefix = "model"
    _no_split_modules = ["ParcaeBlock", "ParcaeCore"]
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = (2 / (5 * self.config.n_embd)) ** 0.5
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, std=std)
        elif isinstance(module, RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, DiagonalInjection):
            init.zeros_(module.A_log)
            init.zeros_(module.dt_bias)
            init.eye_(module.B)
        elif isinstance(module, ParcaeAttention) and module.qk_bias is not None:
            init.zeros_(module.qk_bias)
        elif isinstance(module, Rope):
            module.reset()


class ParcaeModel(StackModel, ParcaePreTrainedModel):
    """Embedding, value embeddings, prelude, core, coda and final norm."""

    def __init__(self, config: ParcaeConfig):
        super().__init__(config)
        inner, kv_width = config.intermediate_size, config.num_key_value_heads * config.head_dim
        first_coda = config.n_layers_in_prelude + config.n_layers_in_recurrent_block
        self.embed_tokens = nn.Embedding(config.num_embeddings, config.n_embd)
        self.value_embeds = nn.ModuleDict(
            {str(layer): nn.Embedding(config.num_embeddings, kv_width) for layer in config.value_tables}
        )
        self.prelude_layers = nn.ModuleList(ParcaeBlock(config, i, inner) for i in range(config.n_layers_in_prelude))
        self.prelude_norm = RMSNorm(config.n_embd, config.norm_eps) if config.prelude_norm else nn.Identity()
        self.core = ParcaeCore(config)
        self.to_coda = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.coda_layers = nn.ModuleList(
            ParcaeBlock(config, first_coda + i, inner) for i in range(config.n_layers_in_coda)
        )
        self.norm = RMSNorm(config.n_embd, config.norm_eps)
        self.rope = Rope(config.inverse_frequencies, interleaved=True)
        self.post_init()

    def context_at(self, input_ids: Tensor, positions: Tensor, mask: Tensor | None, bank: KVBank | None) -> LoopContext:
        cos, sin = self.rope(positions, self.dtype)
        added = [self.value_embeds[str(layer)](input_ids) for layer in self.config.value_layers]
        return LoopContext(cos, sin, mask, bank, torch.stack(added) if added else None)

    def prelude(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, context: LoopContext | None = None
    ) -> Tensor:
        return self.prelude_norm(super().prelude(input_ids, attention_mask, context))

    def coda(self, state: Tensor, context: LoopContext) -> Tensor:
        return super().coda(self.to_coda(state), context)


class ParcaeForCausalLM(LoopedForCausalLM, ParcaePreTrainedModel):
    """Parcae with its language-model head, whose columns beyond `vocab_size` are padding."""

    MODEL = ParcaeModel
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    PARTS = STACK_PARTS | {
        "model.value_embeds.": "prelude",
        "model.prelude_norm.": "prelude",
        "model.to_coda.": "coda",
    }
    RENAMES = {
        "transformer.wte.": "model.embed_tokens.",
        "value_embeds.": "model.value_embeds.",
        "transformer.prelude.": "model.prelude_layers.",
        "transformer.ln_prelude.": "model.prelude_norm.",
        "transformer.adapter.": "model.core.injection.",
        "transformer.core_block.": "model.core.layers.",
        "transformer.C.": "model.to_coda.",
        "transformer.coda.": "model.coda_layers.",
        "transformer.ln_f.": "model.norm.",
    }
    RECOMPUTED = ("freqs_cis",)
    STRIPPED = ("module.", "_orig_mod.", "model.")
    FAMILY = Family(
        title="Parcae",
        examples=("SandyResearch/parcae-140m", "SandyResearch/parcae-1.3b"),
        loop="diagonal decay of the state plus B e; zero or drawn initial state",
    )

    @classmethod
    def read_config(cls, settings: Mapping[str, Any], tensor_names: Iterable[str]) -> ParcaeConfig:
        found = ParcaeConfig.layers_in(dict(settings), tensor_names)
        return super().read_config({**settings, **found}, tensor_names)

    def read_out(self, hidden: Tensor) -> Tensor:
        logits, cap = self.lm_head(hidden), self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(at_least_fp32(logits) / cap)
