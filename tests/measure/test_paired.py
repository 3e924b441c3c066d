"""Statistics over seeds against values worked by hand and printed tables."""

import math

import pytest

from looprl.measure.paired import Difference, Spread, paired_difference, t_bound


def test_spread_is_the_mean_and_the_sample_standard_deviation():
    # deviations -2, 0, 2: variance 8 / (3 - 1) = 4
    assert Spread.of([3.0, 5.0, 7.0]) == Spread(5.0, 2.0, 3)


def test_a_single_value_has_no_deviation_and_no_value_no_spread():
    assert Spread.of([0.4]) == Spread(0.4, None, 1)
    assert Spread.of([]) is None


@pytest.mark.parametrize(
    ("degrees", "bound"),
    # the column of .975 in any table of Student's t
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045), (120, 1.980)],
)
def test_t_bound_is_the_tabulated_one(degrees, bound):
    assert t_bound(degrees) == pytest.approx(bound, abs=5e-4)


def test_t_bound_follows_the_level():
    # one degree of freedom is Cauchy's distribution: t = tan(pi * level / 2)
    for level in (0.5, 0.9, 0.99):
        assert t_bound(1, level) == pytest.approx(math.tan(math.pi * level / 2), rel=1e-9)


def test_paired_difference_is_worked_by_hand():
    baseline = {0: 0.50, 1: 0.60, 2: 0.70}
    values = {0: 0.53, 1: 0.61, 2: 0.72}
    # differences .03, .01, .02: mean .02, deviation .01, half width 4.302653 * .01 / sqrt(3)
    found = paired_difference(values, baseline)
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert found.mean == pytest.approx(0.02) and found.n == 3
    assert found.interval == pytest.approx((0.02 - half, 0.02 + half), abs=1e-8)


def test_pairs_are_made_by_seed_whatever_the_order_and_only_where_both_have_it():
    found = paired_difference({2: 0.9, 0: 0.5, 7: 0.0}, {0: 0.4, 2: 0.8, 9: 1.0})
    assert found.mean == pytest.approx(0.1) and found.n == 2
    assert found.interval == pytest.approx((0.1, 0.1))


def test_one_pair_has_no_interval_and_no_pair_no_difference():
    assert paired_difference({0: 0.75}, {0: 0.5, 1: 0.6}) == Difference(0.25, None, 1)
    assert paired_difference({0: 0.75}, {1: 0.5}) is None
