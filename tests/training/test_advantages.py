"""Groups of equal rewards are found exactly, whatever the rewards' rounding and whoever abstained."""

import torch

from looprl.training.advantages import zero_variance_groups

NAN = float("nan")


def groups(rows, weights=(1.0,)):
    return zero_variance_groups(torch.tensor(rows), torch.tensor(weights), group_size=3).view(-1, 3)[:, 0].tolist()


def test_equal_rewards_are_found_though_their_mean_is_rounded():
    assert groups([[0.1]] * 3 + [[0.1], [0.1], [0.2]]) == [True, False]


def test_an_abstention_does_not_make_a_group_unequal():
    assert groups([[1.0], [NAN], [1.0], [1.0], [NAN], [0.0], [NAN], [NAN], [NAN]]) == [True, False, True]


def test_several_rewards_count_by_their_weighted_sum():
    rows = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    assert groups(rows, (1.0, 1.0)) == [True]
    assert groups(rows, (1.0, 2.0)) == [False]
