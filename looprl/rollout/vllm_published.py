"""The published families as vLLM 0.32 models: the modules of `looprl.models` themselves, on the paged cache.

Only attention differs: it goes to vLLM's paged layers, through the bank in the context. So a family has no second
implementation to keep in step, and its weights load and re-load as they are. The linear layers are plain ones: neither
tensor parallelism nor quantisation.
"""

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention as PagedAttention

from looprl.models.exit_gate import state_at_exit
from looprl.models.initial_state import drawn_states
from looprl.models.registry import FAMILIES
from looprl.rollout.twin import Twin


class PagedBank:
    """The K/V bank of one forward pass: `paged[layer]` are vLLM's layers, one for all loops or one for each."""

    def __init__(self, paged: Any):
        self.paged = paged
        self._visits: Counter[int] = Counter()

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layer: int, mask: Tensor | None) -> Tensor:
        """See `KVBank.attend`, with one row of N tokens, of several requests; vLLM knows which may read which."""
        banks = self.paged[layer]
        bank = banks[self._visits[layer] % len(banks)]
        self._visits[layer] += 1
        flat = (each[0].transpose(0, 1).flatten(1) for each in (queries, keys, values))
        return bank(*flat)[None]


def paged_layers(vllm_config: VllmConfig) -> nn.ModuleList:
    """vLLM's attention layers: [physical layer][bank], several banks where the core keeps one for each loop."""
    config = vllm_config.model_config.hf_config
    first = config.num_prelude_layers
    core = range(first, first + config.num_core_layers)
    return nn.ModuleList(
        nn.ModuleList(
            PagedAttention(
                config.num_attention_heads,
                config.head_dim,
                config.head_dim**-0.5,
                num_kv_heads=config.num_key_value_heads,
                cache_config=vllm_config.cache_config,
                quant_config=vllm_config.quant_config,
                # vLLM wants one number in it, different for every K/V bank
                prefix=f"layers.{layer + bank * config.num_hidden_layers}.attention",
            )
            for bank in range(config.num_loops if layer in core and config.kv_policy == "per_loop" else 1)
        )
        for layer in range(config.num_hidden_layers)
    )


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": -1})
class PublishedModel(nn.Module):
    """Everything that is compiled: tokens -> hidden states, penultimate state, endpoint, gate logits, each [N, d].

    initial_states: [max_model_len, d], by position, where they are drawn. exit_threshold: with it each token is read
    out at the loop where it stops early. All loops are run, for those who read its keys and values.
    """

    initial_states: Tensor | None

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        if get_tensor_model_parallel_world_size() > 1:
            raise ValueError(f"{config.model_type} runs on one GPU: set tensor_parallel_size to 1")
        self.num_loops = config.num_loops
        self.exit_threshold: float | None = config.exit_threshold
        self.reads_gate = config.exported_state == "gate" or config.exit_threshold is not None
        self.looped = FAMILIES[config.model_type].MODEL(config)
        self.paged = paged_layers(vllm_config)
        room = torch.zeros(vllm_config.model_config.max_model_len, config.hidden_size)
        self.register_buffer("initial_states", room if config.initial_state == "drawn" else None, persistent=False)

    def draw_initial_states(self, seed: int) -> None:
        """Start the loops from the states of this seed, in place, as a captured graph reads them."""
        assert self.initial_states is not None
        self.initial_states.copy_(drawn_states(self.looped.config, seed, len(self.initial_states)))

    def forward(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        looped, tokens = self.looped, input_ids[None]
        context = looped.context_at(tokens, positions[None], None, PagedBank(self.paged))
        injected = looped.prelude(tokens, context=context)
        if self.initial_states is None:
            state = looped.initial_state(injected)
        else:
            state = self.initial_states[positions][None]
        penultimate = endpoint = state
        states: list[Tensor] = []
        for _ in range(self.num_loops):
            penultimate, endpoint = endpoint, looped.core(endpoint, injected, *context)
            states += [endpoint] if self.reads_gate else []
        if not self.reads_gate:
            return looped.coda(endpoint, context)[0], penultimate[0], endpoint[0]
        every = torch.stack(states)
        gate = looped.exit_gate(every)
        assert gate is not None
        read = endpoint
        if self.exit_threshold is not None:
            read = state_at_exit(every, gate, self.exit_threshold)
        padded = F.pad(gate, (0, endpoint.shape[-1] - self.num_loops))
        return looped.coda(read, context)[0], penultimate[0], endpoint[0], padded[0]


class PublishedForCausalLM(Twin):
    """The twin of every published family."""

    INNER = PublishedModel
    WITHIN = "model.looped."
