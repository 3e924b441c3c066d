"""Causal attention over a whole sequence or a cache."""

import torch.nn.functional as F
from torch import Tensor


def masked_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot products: queries [B, heads, T, head_dim], keys and values [B, kv_heads, S, head_dim].

    mask: bool [B, 1, T, S], True where a query may read a key, or None for plain causal attention (S = T).
    Returns [B, T, heads * head_dim].
    """
    attended = F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=keys.shape[1] != queries.shape[1],
    )
    return attended.transpose(1, 2).flatten(-2)
