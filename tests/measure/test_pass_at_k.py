"""pass@k, majority votes and their intervals against enumeration, values worked by hand and simulated problems."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from looprl.measure.paired import t_bound
from looprl.measure.pass_at_k import interval_over_problems, majority, pass_at_k, wilson_interval


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_correct_completion(n):
    for correct in range(n + 1):
        for k in range(1, n + 1):
            draws = list(combinations([True] * correct + [False] * (n - correct), k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-15)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_pass_at_k_is_unbiased(p):
    # its mean over binomial numbers of correct completions is the closed form, the chance of one success in k trials
    for n, k in ((8, 1), (8, 3), (8, 8), (200, 100)):
        mean = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k, rel=1e-12)


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_what_cannot_be_drawn(n, correct, k):
    with pytest.raises(ValueError, match=f"pass@{k} "):
        pass_at_k(n, correct, k)


@pytest.mark.parametrize(
    ("answers", "passes", "expected"),
    [
        (["5", "5", "7"], [True, True, False], 1),
        (["5", "5", "7"], [False, False, True], 0),
        (["5", "7"], [True, False], 1 / 2),
        (["5", "7", "9"], [False, True, False], 1 / 3),
        (["5", "5", "7", "7", "9"], [True, True, False, False, True], 1 / 2),
        ([None, None, None, "5"], [False, False, False, True], 1),
        (["", "", "5"], [False, False, True], 0),
        ([None, None], [False, True], 0),
        ([], [], 0),
        # the same answer in a form that fails does not count
        (["5", "5", "5", "7"], [True, False, True, False], 2 / 3),
    ],
)
def test_the_most_frequent_answer_decides_and_equally_frequent_ones_count_alike(answers, passes, expected):
    assert majority(answers, passes) == pytest.approx(expected)


def test_interval_of_single_completions_is_wilsons_with_students_t():
    # 20 of 50: the variance of the mean is p (1 - p) / 49, so that 49 trials count
    bound = t_bound(49)
    assert interval_over_problems([1.0] * 20 + [0.0] * 30, 50) == pytest.approx(wilson_interval(0.4, 49, bound))


def test_completions_that_always_agree_within_a_problem_count_as_one():
    rates = [1.0] * 20 + [0.0] * 30
    assert interval_over_problems(rates, 8 * 50) == interval_over_problems(rates, 50)


@pytest.mark.parametrize(("rates", "mean"), [([0.5] * 10, 0.5), ([0.5] * 9 + [0.75], 0.525)])
def test_problems_that_hardly_differ_count_as_no_more_than_their_completions(rates, mean):
    # their variance alone would make it infinitely many trials, or 399 of 40 completions
    assert interval_over_problems(rates, 40) == pytest.approx(wilson_interval(mean, 40, t_bound(9)))


@pytest.mark.parametrize(("rate", "end"), [(0.0, 0), (1.0, 1)])
def test_unanimous_problems_leave_doubt(rate, end):
    interval = interval_over_problems([rate] * 100, 800)
    # a share of 0 in 100: up to t^2 / (100 + t^2)
    far = t_bound(99) ** 2 / (100 + t_bound(99) ** 2)
    assert interval[end] == pytest.approx(rate) and interval[1 - end] == pytest.approx(abs(rate - far))


def test_a_single_problem_has_no_interval():
    assert interval_over_problems([0.5], 8) is None
    assert interval_over_problems([], 0) is None


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (4, 16), (8, 0.4)])
def test_intervals_hold_the_true_rate_in_95_percent_of_simulated_evaluations(a, b):
    rng = np.random.default_rng(0)
    problems, k, repeats = 60, 8, 1500
    drawn = rng.binomial(k, rng.beta(a, b, (repeats, problems))) / k
    intervals = [interval_over_problems(rates, k * problems) for rates in drawn.tolist()]
    covered = np.mean([low <= a / (a + b) <= high for low, high in intervals])
    assert 0.93 <= covered <= 0.975
