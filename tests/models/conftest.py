"""Tiny LoopLMs in double precision, and an independent way to run them."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from looprl.models import LoopLMConfig, LoopLMForCausalLM

TINY = dict(
    vocab_size=17,
    hidden_size=8,
    intermediate_size=12,
    num_attention_heads=2,
    num_prelude_layers=1,
    num_core_layers=2,
    num_coda_layers=1,
    num_loops=3,
    max_position_embeddings=64,
)


@pytest.fixture
def make_model() -> Callable[..., LoopLMForCausalLM]:
    """make_model(seed=0, **config): random weights everywhere, the norms' and the injection's included."""

    def make(seed: int = 0, **config) -> LoopLMForCausalLM:
        torch.manual_seed(seed)
        model = LoopLMForCausalLM(LoopLMConfig(**TINY | config)).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
        return model

    return make


class Schedule:
    """One row, without padding, fed chunk by chunk under terminal KV sharing; no mask, no cache, no model forward.

    Within a chunk tokens read each other's keys and values of the same loop; those of earlier chunks are plain
    tensors, kept as they were after the last loop.
    """

    def __init__(self, model: LoopLMForCausalLM, num_loops: int):
        self.model, self.num_loops = model.model, num_loops
        self.head, self.config = model.lm_head, model.config
        self.earlier: dict[int, tuple[Tensor, Tensor]] = {}
        self.written: dict[int, tuple[Tensor, Tensor]] = {}
        self.length = 0

    @torch.no_grad()
    def feed(self, chunk: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits [T, V] and states z_R [T, d] of the chunk's tokens."""
        model = self.model
        x = model.embed_tokens(torch.tensor(list(chunk)))
        if self.config.tie_word_embeddings:
            x = x * self.config.hidden_size**0.5
        for block in model.prelude_layers:
            x = self._block(block, x)
        injected, state = x, torch.zeros_like(x)
        for _ in range(self.num_loops):
            x = model.core.injection(state, injected)
            for block in model.core.layers:
                x = self._block(block, x)
            state = x
        for block in model.coda_layers:
            x = self._block(block, x)
        for layer, new in self.written.items():
            old = self.earlier.get(layer)
            self.earlier[layer] = new if old is None else (torch.cat([old[0], new[0]]), torch.cat([old[1], new[1]]))
        self.written = {}
        self.length += len(chunk)
        return self.head(model.norm(x)), state

    def _block(self, block, x: Tensor) -> Tensor:
        x = block.attention_out_norm(x + self._attention(block.attention, block.attention_norm(x)))
        return block.mlp_out_norm(x + block.mlp(block.mlp_norm(x)))

    def _attention(self, attention, x: Tensor) -> Tensor:
        heads, kv_heads, width = self.config.num_attention_heads, self.config.num_key_value_heads, self.config.head_dim
        query_rows, key_rows, value_rows = attention.qkv_proj.weight.split([heads * width] + 2 * [kv_heads * width])
        queries, keys = (
            self._turn((x @ query_rows.T).view(-1, heads, width)),
            (x @ key_rows.T).view(-1, kv_heads, width),
        )
        keys, values = self._turn(keys), (x @ value_rows.T).view(-1, kv_heads, width)
        self.written[attention.layer] = keys, values
        if attention.layer in self.earlier:
            keys = torch.cat([self.earlier[attention.layer][0], keys])
            values = torch.cat([self.earlier[attention.layer][1], values])
        rows = []
        for token, query in enumerate(queries):
            for head in range(heads):
                shared = head * kv_heads // heads
                seen = slice(0, self.length + token + 1)
                weights = (keys[seen, shared] @ query[head] / width**0.5).softmax(0)
                rows.append(weights @ values[seen, shared])
        return torch.stack(rows).view(len(x), -1) @ attention.o_proj.weight.T

    def _turn(self, x: Tensor) -> Tensor:
        """Rotary positions as complex numbers; angles in single precision, as the model computes them."""
        half = self.config.head_dim // 2
        steps = self.config.rope_theta ** -(torch.arange(half).float() / half)
        angles = torch.arange(self.length, self.length + len(x))[:, None] * steps
        turn = torch.complex(angles.cos().double(), angles.sin().double())[:, None]
        turned = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    def feed_all(self, chunks: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """`feed` each chunk; logits and states of all tokens."""
        logits, states = zip(*(self.feed(chunk) for chunk in chunks), strict=True)
        return torch.cat(logits), torch.cat(states)


@pytest.fixture
def schedule() -> type[Schedule]:
    """schedule(model, num_loops).feed_all(chunks) -> logits, states."""
    return Schedule
