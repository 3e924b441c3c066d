"""Which position each token has and which tokens it may read, from an attention mask."""

import torch
from torch import Tensor


def positions_of(input_ids: Tensor, attention_mask: Tensor | None, past: int = 0) -> Tensor:
    """Positions [B, T] of `input_ids` [B, T] behind `past` cached tokens; padding counts for none.

    attention_mask: [B, past + T], 0 for padding, on either side.
    """
    if attention_mask is None:
        batch, length = input_ids.shape
        return torch.arange(past, past + length, device=input_ids.device).expand(batch, length)
    return (attention_mask.long().cumsum(-1) - 1).clamp_min(0)[:, past:]


def positions_and_mask(input_ids: Tensor, attention_mask: Tensor | None, past: int) -> tuple[Tensor, Tensor | None]:
    """Positions [B, T] of `input_ids` [B, T] behind `past` cached tokens, and the mask of `masked_attention`.

    attention_mask: as for `positions_of`.
    """
    if attention_mask is not None and bool(attention_mask.all()):
        attention_mask = None
    positions = positions_of(input_ids, attention_mask, past)
    if attention_mask is None and not past:
        return positions, None
    length = input_ids.shape[1]
    queries = torch.arange(past, past + length, device=input_ids.device)
    keys = torch.arange(past + length, device=input_ids.device)[None]
    mask = (keys <= queries[:, None])[None, None]
    if attention_mask is not None:
        # a padding query may read itself, since softmax over nothing is NaN
        mask = (mask & attention_mask.bool()[:, None, None]) | (keys == queries[:, None])
    return positions, mask
