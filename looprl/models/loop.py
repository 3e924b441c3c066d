"""The loop itself: the shared block, what it is given besides the state, and how it is applied R times."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from looprl.models.attention import masked_attention
from looprl.models.kv_bank import KVBank


class LoopContext(NamedTuple):
    """What attention needs besides the hidden states; passed to `core` positionally, as ZeRO-3 asks.

    cos, sin: [B, T, head_dim] rotary factors. mask: bool [B, 1, T, S], True where a query may read a key,
    or None for plain causal attention. bank: the K/V bank of cached decoding, or None. token_values: what some
    families add to the values of a layer, by token: [tables, B, T, kv_heads * head_dim].
    """

    cos: Tensor
    sin: Tensor
    mask: Tensor | None
    bank: KVBank | None = None
    token_values: Tensor | None = None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layer: int) -> Tensor:
        """Attention of physical layer `layer`: see `KVBank.attend`."""
        if self.bank is None:
            return masked_attention(queries, keys, values, self.mask)
        return self.bank.attend(queries, keys, values, layer, self.mask)


class Core(nn.Module):
    """The shared block F. Subclasses implement `loop`; everybody calls the module.

    `record` runs inside this module's forward, so that a graph built by it (the Neumann adjoint) stays inside
    one module: the condition under which ZeRO-3 may treat the core as a leaf.
    """

    def forward(
        self, state: Tensor, injected: Tensor, *context: Any, record: Callable[..., Tensor] | None = None
    ) -> Tensor:
        """Apply one loop: state, injected [B, T, d] -> [B, T, d]."""
        if record is None:
            return self.loop(state, injected, *context)
        return record(self.loop, state, injected, *context)

    def loop(self, state: Tensor, injected: Tensor, *context: Any) -> Tensor:
        raise NotImplementedError


class LoopRunner(Protocol):
    """How to get from the given state to the state that is read out: plain loops, or a gradient estimator.

    Returns that state [B, T, d], or those of every loop [R, B, T, d]: then each of them is read out.
    """

    def __call__(self, core: Core, state: Tensor, injected: Tensor, context: LoopContext, num_loops: int) -> Tensor: ...


def run_loops(core: Core, state: Tensor, injected: Tensor, context: LoopContext, num_loops: int) -> Tensor:
    """Apply the core `num_loops` times, recording whatever autograd records."""
    for _ in range(num_loops):
        state = core(state, injected, *context)
    return state


def every_state(core: Core, state: Tensor, injected: Tensor, context: LoopContext, num_loops: int) -> Tensor:
    """As `run_loops`, with the states of all loops [R, B, T, d]."""
    states = [state]
    for _ in range(num_loops):
        states.append(core(states[-1], injected, *context))
    return torch.stack(states[1:])
