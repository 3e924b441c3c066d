"""Rotary positions (Su et al., 2021, arXiv:2104.09864): the frequencies, and the two layouts of the pairs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SCALINGS = ("linear", "yarn", "llama3")


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, heads, T, head_dim] by cos, sin [B, T, head_dim]; a pair is (i, i + head_dim / 2)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `rotate`, but a pair is (2i, 2i + 1), and the products are taken in the precision of cos and sin."""
    turned = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
    return (x * cos[:, None] + turned * sin[:, None]).to(x.dtype)


def frequencies(
    head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None, max_positions: int = 1
) -> tuple[Tensor, float]:
    """Angle per position of each pair, fp32 [head_dim / 2], and the factor on cos and sin.

    scaling: a published `rope_scaling` of type linear, yarn or llama3, computed by transformers. ValueError on others,
    whose frequencies depend on the length of the sequence, and on keys that are missing.
    """
    kind = "default" if scaling is None else scaling.get("rope_type", scaling.get("type"))
    if kind == "default":
        return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim), 1.0
    if kind not in SCALINGS:
        raise ValueError(f"rope_scaling is of type {kind!r}; supported are {', '.join(SCALINGS)}")
    assert scaling is not None
    parameters = {key: value for key, value in scaling.items() if key != "type"} | {"rope_type": kind}
    try:
        config = LlamaConfig(
            hidden_size=head_dim,
            num_attention_heads=1,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rope_parameters=parameters | {"rope_theta": theta},
        )
        scaled, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    except KeyError as error:
        raise ValueError(f"rope_scaling of type {kind!r} cannot be used: {error.args[0]}") from error
    return scaled.float(), float(factor)


class Rope(nn.Module):
    """cos and sin of positions. The frequencies stay in fp32 whatever the model is cast to.

    interleaved: for `rotate_pairs`, with factors in fp32 at least; otherwise for `rotate`.
    """

    inverse_frequencies: Tensor

    def __init__(self, compute: Callable[[], tuple[Tensor, float]], interleaved: bool = False):
        super().__init__()
        self.compute, self.interleaved = compute, interleaved
        values, self.factor = self._on_cpu()
        self.register_buffer("inverse_frequencies", values, persistent=False)

    def _on_cpu(self) -> tuple[Tensor, float]:
        with torch.device("cpu"):
            return self.compute()

    def reset(self) -> None:
        """Fill the buffer: a model that was built without memory gets it empty."""
        self.inverse_frequencies = self._on_cpu()[0].to(self.inverse_frequencies.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rope":
        super()._apply(fn, recurse)
        self.reset()
        return self

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos, sin [..., T, head_dim] of positions [..., T]."""
        angles = positions[..., None].float() * self.inverse_frequencies
        if self.interleaved:
            angles, dtype = angles.repeat_interleave(2, dim=-1), torch.promote_types(dtype, torch.float32)
        else:
            angles = torch.cat([angles, angles], dim=-1)
        return (angles.cos() * self.factor).to(dtype), (angles.sin() * self.factor).to(dtype)
