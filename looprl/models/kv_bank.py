"""K/V banks of cached decoding: at which loop an earlier token is read.

A bank lives for one forward pass over a chunk of tokens, on a transformers cache that outlives it. A layer of the
core calls `attend` once in every loop.
"""

from collections import Counter
from typing import Protocol

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from looprl.models.attention import masked_attention


class KVBank(Protocol):
    """What a layer asks of a bank."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layer: int, mask: Tensor | None) -> Tensor:
        """Store this chunk's keys and values [B, kv_heads, T, head_dim] and read those of all tokens so far.

        queries: [B, heads, T, head_dim]; mask as for `masked_attention`. Returns [B, T, heads * head_dim].
        """
        ...


class CacheBank:
    """A bank on a transformers cache."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layer: int, mask: Tensor | None) -> Tensor:
        return masked_attention(queries, *self.update(keys, values, layer), mask)

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store this chunk's keys and values; return those of all tokens so far."""
        raise NotImplementedError


class TerminalKVBank(CacheBank):
    """One slot per physical layer: each loop overwrites what the chunk had written there in the loop before.

    After the last loop the slots hold last-loop keys and values, so later chunks read earlier tokens at their last
    loop: terminal KV sharing.
    """

    def __init__(self, cache: Cache, past_length: int):
        self.cache, self.past_length = cache, past_length

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        written = self.cache.get_seq_length(layer) - self.past_length
        if written > 0:
            self.cache.layers[layer].crop(-written)
        return self.cache.update(keys, values, layer)


class PerLoopKVBank(CacheBank):
    """One slot per (loop, layer): every loop reads earlier tokens at that same loop.

    Loop r of physical layer l has slot l + r * num_layers. Decoding then equals the full-sequence forward pass.
    """

    def __init__(self, cache: Cache, num_layers: int):
        self.cache, self.num_layers = cache, num_layers
        self._visits: Counter[int] = Counter()

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        slot = layer + self._visits[layer] * self.num_layers
        self._visits[layer] += 1
        while len(self.cache.layers) <= slot:  # `generate` makes a layer for each physical one only
            self.cache.layers.append(DynamicLayer())
        return self.cache.update(keys, values, slot)


def make_kv_bank(policy: str, cache: Cache, num_layers: int) -> KVBank:
    """The bank of a policy (`terminal` or `per_loop`) for the next chunk on `cache`."""
    if policy == "per_loop":
        return PerLoopKVBank(cache, num_layers)
    return TerminalKVBank(cache, cache.get_seq_length())
