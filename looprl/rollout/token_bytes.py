"""What the rollout engine keeps of a token, in bytes: keys and values of its banks, and the recurrent state."""

import torch
from transformers import PretrainedConfig

from looprl.rollout.record import KVPolicy


def kv_bytes_per_token(config: PretrainedConfig, num_loops: int, kv_policy: KVPolicy, dtype: torch.dtype) -> int:
    """Keys and values of a token in every bank: one for each physical layer, or one for each loop of a core layer."""
    banks = config.num_hidden_layers
    if kv_policy == "per_loop":
        banks += (num_loops - 1) * config.num_core_layers
    return banks * 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize


def state_bytes_per_token(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """The state of a token, in the engine's cache and in a rollout record alike."""
    return config.hidden_size * dtype.itemsize
