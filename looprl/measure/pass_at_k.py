"""Statistics of several completions per problem: unbiased pass@k, majority vote, and intervals over problems.

Completions of one problem resemble each other, so the problems, not the completions, are the independent units of every
interval.
"""

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from looprl.measure.paired import t_bound

Z_BOUND = 1.959964  # of the normal distribution, 95 %


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that k of n completions, drawn without replacement, hold a correct one.

    This is 1 - C(n - correct, k) / C(n, k). Its mean over the problems is the unbiased estimate of pass@k (Chen et al.,
    2021, arXiv:2107.03374). ValueError unless 1 <= k <= n and 0 <= correct <= n.
    """
    if not 1 <= k <= n or not 0 <= correct <= n:
        raise ValueError(f"pass@{k} cannot be estimated from {correct} correct of {n} completions")
    draws = math.comb(n, k)
    return (draws - math.comb(n - correct, k)) / draws


def majority(answers: Sequence[str | None], passes: Sequence[bool]) -> float:
    """Whether the most frequent answer is right: the share of the completions with it that pass.

    answers: the final answer of each completion; None abstains. Of answers that are equally frequent each counts alike.
    0 where every completion abstains.
    """
    cast = [(answer, passed) for answer, passed in zip(answers, passes, strict=True) if answer is not None]
    votes = Counter(answer for answer, _ in cast)
    most = max(votes.values(), default=0)
    winners = [passed for answer, passed in cast if votes[answer] == most]
    return statistics.fmean(winners) if winners else 0.0


def wilson_interval(rate: float, n: float, bound: float = Z_BOUND) -> tuple[float, float]:
    """The interval of a share of n independent trials (Wilson, 1927); bound: in standard errors, 1.96 for 95 %."""
    centre, scale = rate + bound**2 / (2 * n), 1 + bound**2 / n
    half = bound * math.sqrt(rate * (1 - rate) / n + bound**2 / (4 * n**2))
    return max((centre - half) / scale, 0.0), min((centre + half) / scale, 1.0)


def interval_over_problems(rates: Sequence[float], completions: int) -> tuple[float, float] | None:
    """The 95 % interval of the mean of one rate in [0, 1] per problem; None for fewer than two problems.

    Wilson's, with Student's t and the number of independent trials whose standard error is that of the rates (Korn and
    Graubard, 1998): at most as many as there are completions, and one per problem where all rates are 0 or all 1.
    """
    if len(rates) < 2:
        return None
    mean = statistics.fmean(rates)
    variance = statistics.variance(rates) / len(rates)  # of the mean
    if mean in (0, 1):
        trials = float(len(rates))
    else:
        trials = min(mean * (1 - mean) / variance, completions) if variance else completions
    return wilson_interval(mean, trials, t_bound(len(rates) - 1))
