"""What the published families share: configurations that keep the published keys, RMSNorm, the gated feed-forward."""

from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig

from looprl.models.configuration_looplm import KV_POLICIES

Derived = Any  # of a key whose value, where the file has none, `derive` fills in


class PublishedConfig(PretrainedConfig):
    """A configuration under the keys of the published `config.json`, which it also writes.

    `attribute_map` gives the library's names (`num_loops`, `hidden_size`, ...) of those keys; a key that is not at its
    default wins over its other name. kv_policy: how cached decoding reads earlier tokens, as in `LoopLMConfig`.
    Raises ValueError on what looprl does not run.
    """

    keys_to_ignore_at_inference = ["past_key_values", "state"]

    num_key_value_heads: Derived = None
    kv_policy: str = "terminal"
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        for alias, name in self.attribute_map.items():
            if alias in kwargs:
                value = kwargs.pop(alias)
                if getattr(self, name) == defaults[name]:
                    setattr(self, name, value)
        if parameters := kwargs.pop("rope_parameters", None):  # what transformers 5 writes for theta and scaling
            self.rope_theta = parameters.get("rope_theta", self.rope_theta)
            self.rope_scaling = parameters
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        self.derive()
        self.require("kv_policy", KV_POLICIES)
        for name in ("num_loops", "num_core_layers", "vocab_size", "hidden_size", "num_attention_heads", "head_dim"):
            self.require_at_least(name, 1)
        self.require_at_least("num_key_value_heads", 1)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{type(self).__name__}.num_key_value_heads ({self.num_key_value_heads}) must divide the number of "
                f"attention heads ({self.num_attention_heads})"
            )
        if self.num_embeddings < self.vocab_size:
            raise ValueError(
                f"{type(self).__name__}.padded_vocab_size ({self.num_embeddings}) is below vocab_size "
                f"({self.vocab_size})"
            )
        super().__post_init__(**kwargs)

    def derive(self) -> None:
        """Fill in what other keys imply, and refuse what looprl does not run."""

    def require(self, name: str, choices: tuple[Any, ...]) -> None:
        """ValueError unless the key has one of these values."""
        if getattr(self, name) not in choices:
            known = ", ".join(map(str, choices))
            raise ValueError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; supported: {known}")

    def require_at_least(self, name: str, least: int) -> None:
        """ValueError unless the key is a whole number of at least `least`."""
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(
                f"{type(self).__name__}.{self.attribute_map.get(name, name)} must be a whole number of at least "
                f"{least}, got {value!r}"
            )

    @property
    def num_embeddings(self) -> int:
        """Rows of the embedding and the head: the vocabulary, padded where the family pads it."""
        return getattr(self, "padded_vocab_size", None) or self.vocab_size


class RMSNorm(nn.Module):
    """x / rms(x) in single precision at least, cast back, then times the weight."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class GatedMLP(nn.Module):
    """proj(silu(gate) * up), gate and up in one matrix `fc`."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.fc = nn.Linear(width, 2 * inner, bias=False)
        self.proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fc(x).chunk(2, dim=-1)
        return self.proj(F.silu(gate) * up)
