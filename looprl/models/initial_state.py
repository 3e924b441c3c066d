"""Initial states z_0 that are drawn, from the distribution that a family publishes.

The published code of Huginn, the retrofits and Parcae draws z_0 anew in every forward pass, so that a sampler and a
trainer would never start alike. Here z_0 is a function of a seed and of the token's position: whoever knows the seed
has the same one, however the tokens come in chunks or batches, and samples that share a prompt share its states.
"""

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from looprl.errors import UserError
from looprl.models.positions import positions_of

InitialState = Literal["zero", "drawn"]
CUT = 3  # standard deviations at which the normal distribution ends


def is_drawable(config: PretrainedConfig) -> bool:
    """Whether the model of this configuration has a published distribution of initial states."""
    return bool(getattr(config, "initial_state_std", None))


def check_drawable(config: PretrainedConfig) -> None:
    """UserError unless `is_drawable`."""
    if not is_drawable(config):
        kind = getattr(config, "state_init", None)
        raise UserError(
            f"initial_state is 'drawn', but {config.model_type} publishes no distribution of initial states"
            f"{f' that looprl draws from (state_init is {kind!r})' if kind else ''}: use initial_state: zero"
        )


def draw_(states: Tensor, std: float, scale: float, generator: torch.Generator | None = None) -> Tensor:
    """Fill with a normal distribution, cut off at `CUT` standard deviations, times `scale`: the published draw."""
    return nn.init.trunc_normal_(states, std=std, a=-CUT * std, b=CUT * std, generator=generator).mul_(scale)


def drawn_states(config: PretrainedConfig, seed: int, length: int) -> Tensor:
    """z_0 of positions 0 to `length` - 1: [length, d], fp32, on the CPU; not to be changed in place.

    A longer table begins with the shorter one. UserError as `check_drawable`.
    """
    check_drawable(config)
    return _table(config.initial_state_std, config.embedding_scale, config.hidden_size, seed, length)


def drawn_initial_state(
    config: PretrainedConfig, seed: int | None, input_ids: Tensor, attention_mask: Tensor | None = None
) -> Tensor | None:
    """z_0 [B, T, d] of padded tokens; None without a seed, as a model then starts from its own. Padding counts for no
    position.
    """
    if seed is None:
        return None
    table = drawn_states(config, seed, input_ids.shape[1]).to(input_ids.device)
    return table[positions_of(input_ids, attention_mask)]


@lru_cache(maxsize=2)
def _table(std: float, scale: float, width: int, seed: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):  # vLLM's workers run in it, and share this cache with the trainer
        table = torch.empty(length, width, dtype=torch.float32, device="cpu")
        for row in table:  # torch draws again what it cuts off, so that a row's numbers depend on all drawn with it
            draw_(row, std, scale, generator)
    return table
