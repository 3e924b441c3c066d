"""Blocks of LoopLM: rotary grouped-query attention, SwiGLU, norms."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from looprl.models.configuration_looplm import LoopLMConfig
from looprl.models.loop import LoopContext
from looprl.models.rope import rotate


def make_norm(config: LoopLMConfig) -> nn.Module:
    """LayerNorm without bias, or RMSNorm, over the hidden size."""
    if config.norm == "layer":
        return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)
    return nn.RMSNorm(config.hidden_size, eps=config.norm_eps)


def rotary_factors(position_ids: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos, sin [..., T, head_dim] of the half-rotation form of RoPE (Su et al., 2021, arXiv:2104.09864)."""
    exponents = torch.arange(0, head_dim, 2, device=position_ids.device, dtype=torch.float32) / head_dim
    angles = position_ids[..., None].float() * theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


class ResidualLinear(nn.Linear):
    """A linear layer whose output is added to the residual stream; it is initialised smaller."""


class Attention(nn.Module):
    """Causal grouped-query self-attention with rotary positions."""

    def __init__(self, config: LoopLMConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.qkv_proj = nn.Linear(
            config.hidden_size, (self.num_heads + 2 * self.num_kv_heads) * self.head_dim, bias=False
        )
        self.o_proj = ResidualLinear(self.num_heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        qkv = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        turned, values = qkv.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        turned = rotate(turned, context.cos, context.sin)
        queries, keys = turned.split([self.num_heads, self.num_kv_heads], dim=1)
        return self.o_proj(context.attend(queries, keys, values, self.layer))


class SwiGLU(nn.Module):
    """Gated feed-forward layer (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, config: LoopLMConfig):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = ResidualLinear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    """Attention and feed-forward with residuals; with sandwich norm each residual sum is normalised too."""

    def __init__(self, config: LoopLMConfig, layer: int):
        super().__init__()
        sandwich = config.norm_placement == "sandwich"
        self.attention = Attention(config, layer)
        self.mlp = SwiGLU(config)
        self.attention_norm, self.mlp_norm = make_norm(config), make_norm(config)
        self.attention_out_norm = make_norm(config) if sandwich else nn.Identity()
        self.mlp_out_norm = make_norm(config) if sandwich else nn.Identity()

    def forward(self, x: Tensor, context: LoopContext) -> Tensor:
        x = self.attention_out_norm(x + self.attention(self.attention_norm(x), context))
        return self.mlp_out_norm(x + self.mlp(self.mlp_norm(x)))
