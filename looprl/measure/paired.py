"""Statistics over seeds: mean and standard deviation, and paired differences with their 95 % interval."""

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mpmath


@dataclass(frozen=True)
class Spread:
    """mean of n values; deviation: their sample standard deviation (n - 1), None for a single value."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Summarise the values; None where there are none."""
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Difference:
    """mean of n paired differences, and the 95 % interval of their mean; interval: None for a single pair."""

    mean: float
    interval: tuple[float, float] | None
    n: int


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """values - baseline over the seeds that both have, with Student's t interval; None where they share none.

    Both are by seed. What the pairs share, such as the drawn prompts, drops out of the difference.
    """
    spread = Spread.of([values[seed] - baseline[seed] for seed in sorted(values.keys() & baseline.keys())])
    if spread is None:
        return None
    if spread.deviation is None:
        return Difference(spread.mean, None, spread.n)
    half = t_bound(spread.n - 1) * spread.deviation / spread.n**0.5
    return Difference(spread.mean, (spread.mean - half, spread.mean + half), spread.n)


@functools.cache
def t_bound(degrees: int, level: float = 0.95) -> float:
    """The t such that a Student-t variable with so many degrees of freedom lies within -t..t with this probability.

    P(|T| > t) is the regularised incomplete beta function I_x(degrees / 2, 1 / 2) at x = degrees / (degrees + t^2).
    """

    def beyond(x: float) -> float:
        return mpmath.betainc(degrees / 2, 0.5, 0, x, regularized=True) - (1 - level)

    x = mpmath.findroot(beyond, (0, 1), solver="ridder")
    return float(mpmath.sqrt(degrees * (1 - x) / x))
