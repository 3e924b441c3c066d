"""LoopLM as a vLLM 0.32 model: the same computation as `looprl.models.modeling_looplm`, on the paged cache.

Calling one paged attention in every loop makes each loop overwrite the token's keys and values, so earlier tokens
are read at their last loop: terminal KV sharing. With per-loop KV the core's layers have one for each loop. Parameter
names are those of the transformers model, so that its weights load and re-load as they are.
"""

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention as PagedAttention
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from looprl.models.configuration_looplm import LoopLMConfig
from looprl.models.injection import make_injection
from looprl.models.layers import make_norm
from looprl.rollout.twin import Twin


class Attention(nn.Module):
    """Grouped-query attention on the paged cache, with one K/V bank for all loops or one for each."""

    def __init__(self, config: LoopLMConfig, vllm_config: VllmConfig, layer: int, num_banks: int):
        super().__init__()
        ranks = get_tensor_model_parallel_world_size()
        self.q_size = config.num_attention_heads // ranks * config.head_dim
        self.kv_size = max(config.num_key_value_heads // ranks, 1) * config.head_dim
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=False,
            quant_config=vllm_config.quant_config,
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            bias=False,
            quant_config=vllm_config.quant_config,
        )
        self.rotary = get_rope(
            config.head_dim,
            max_position=config.max_position_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        )
        self.paged = nn.ModuleList(
            PagedAttention(
                self.q_size // config.head_dim,
                config.head_dim,
                config.head_dim**-0.5,
                num_kv_heads=self.kv_size // config.head_dim,
                cache_config=vllm_config.cache_config,
                quant_config=vllm_config.quant_config,
                # vLLM wants one number in it, different for every K/V bank
                prefix=f"layers.{layer + bank * config.num_hidden_layers}.attention",
            )
            for bank in range(num_banks)
        )

    def forward(self, positions: Tensor, x: Tensor, loop: int) -> Tensor:
        qkv, _ = self.qkv_proj(x)
        queries, keys, values = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        queries, keys = self.rotary(positions, queries, keys)
        output, _ = self.o_proj(self.paged[loop % len(self.paged)](queries, keys, values))
        return output


class SwiGLU(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: LoopLMConfig, vllm_config: VllmConfig):
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, [config.intermediate_size] * 2, bias=False, quant_config=vllm_config.quant_config
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size, config.hidden_size, bias=False, quant_config=vllm_config.quant_config
        )
        self.activation = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        gate_up, _ = self.gate_up_proj(x)
        output, _ = self.down_proj(self.activation(gate_up))
        return output


class Block(nn.Module):
    """The block of `looprl.models.layers`, on flattened tokens."""

    def __init__(self, config: LoopLMConfig, vllm_config: VllmConfig, layer: int, num_banks: int = 1):
        super().__init__()
        sandwich = config.norm_placement == "sandwich"
        self.attention = Attention(config, vllm_config, layer, num_banks)
        self.mlp = SwiGLU(config, vllm_config)
        self.attention_norm, self.mlp_norm = make_norm(config), make_norm(config)
        self.attention_out_norm = make_norm(config) if sandwich else nn.Identity()
        self.mlp_out_norm = make_norm(config) if sandwich else nn.Identity()

    def forward(self, positions: Tensor, x: Tensor, loop: int = 0) -> Tensor:
        x = self.attention_out_norm(x + self.attention(positions, self.attention_norm(x), loop))
        return self.mlp_out_norm(x + self.mlp(self.mlp_norm(x)))


class LoopLMCore(nn.Module):
    """Injection and core blocks; the module tree of the transformers model."""

    def __init__(self, config: LoopLMConfig, vllm_config: VllmConfig):
        super().__init__()
        self.injection = make_injection(config.injection, config.hidden_size, config.injection_init)
        first = config.num_prelude_layers
        banks = config.num_loops if config.kv_policy == "per_loop" else 1
        self.layers = nn.ModuleList(Block(config, vllm_config, first + i, banks) for i in range(config.num_core_layers))

    def forward(self, positions: Tensor, state: Tensor, injected: Tensor, loop: int) -> Tensor:
        x = self.injection(state, injected)
        for layer in self.layers:
            x = layer(positions, x, loop)
        return x


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": -1})
class LoopLMModel(nn.Module):
    """Everything that is compiled: tokens -> hidden states, penultimate state and endpoint, each [N, d]."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config: LoopLMConfig = vllm_config.model_config.hf_config
        self.num_loops, self.embedding_scale = config.num_loops, config.embedding_scale
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        first_coda = config.num_prelude_layers + config.num_core_layers
        self.prelude_layers = nn.ModuleList(Block(config, vllm_config, i) for i in range(config.num_prelude_layers))
        self.core = LoopLMCore(config, vllm_config)
        self.coda_layers = nn.ModuleList(
            Block(config, vllm_config, first_coda + i) for i in range(config.num_coda_layers)
        )
        self.norm = make_norm(config)

    def forward(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        injected = self.embed_tokens(input_ids) * self.embedding_scale
        for layer in self.prelude_layers:
            injected = layer(positions, injected)
        penultimate = endpoint = torch.zeros_like(injected)
        for loop in range(self.num_loops):
            penultimate, endpoint = endpoint, self.core(positions, endpoint, injected, loop)
        hidden = endpoint
        for layer in self.coda_layers:
            hidden = layer(positions, hidden)
        return self.norm(hidden), penultimate, endpoint


class LoopLMForCausalLM(Twin):
    """LoopLM with head and state export."""

    INNER = LoopLMModel
