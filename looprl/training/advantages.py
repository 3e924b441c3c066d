"""Group advantages without rounding: groups that teach nothing."""

import torch
from torch import Tensor


def zero_variance_groups(rewards: Tensor, weights: Tensor, group_size: int) -> Tensor:
    """Which samples belong to a group whose rewards are all equal: bool [N].

    rewards: [N, functions], NaN where a function abstained; weights: [functions]. A group's mean of equal floats
    is off by a rounding error, which would leave advantages of 1e-8 where there is nothing to learn.
    """
    weighted = (rewards * weights).nansum(dim=1)
    judged = ~rewards.isnan().all(dim=1)
    groups, known = weighted.view(-1, group_size), judged.view(-1, group_size)
    lowest = groups.masked_fill(~known, torch.inf).amin(dim=1)
    highest = groups.masked_fill(~known, -torch.inf).amax(dim=1)
    return (highest <= lowest).repeat_interleave(group_size)
