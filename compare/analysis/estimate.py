"""Estimate a mean over launches, with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, Self

import msgspec

_CONFIDENCE = 0.95
_FEWEST_FOR_T = 3


class Estimate(msgspec.Struct, frozen=True):
    """An arithmetic or geometric mean over launches, with an interval."""

    mean: float
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    n: int
    """Number of launches."""
    method: Literal["t", "range"]
    """Kind of interval.

    ``t`` is Student's 95 % interval of the mean. ``range`` spans the values if there are only one or two.
    """

    @classmethod
    def geometric(cls, values: Iterable[float]) -> Self:
        """Estimate the geometric mean of positive values, one for each launch, on the log scale.

        A ratio and its inverse then have inverse estimates, and the quotient of two means is the mean of the
        quotients. No end of the interval is negative.
        """
        return cls.of(map(math.log, values)).exponential()

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Estimate the arithmetic mean of one value or more, one for each launch."""
        values = list(values)
        mean = statistics.fmean(values)
        if len(values) < _FEWEST_FOR_T:
            return cls(mean, min(values), max(values), len(values), "range")
        return cls(mean, *t_interval(values, (1 - _CONFIDENCE) / 2), len(values), "t")

    @classmethod
    def of_any(cls, values: Iterable[float | None]) -> Self | None:
        """Estimate the arithmetic mean of the values that are not None; None if there are none."""
        there = [value for value in values if value is not None]
        return cls.of(there) if there else None

    def exponential(self) -> Self:
        """Return the geometric mean of the values, from this estimate of the mean of their logarithms."""
        return type(self)(math.exp(self.mean), math.exp(self.low), math.exp(self.high), self.n, self.method)

    def over(self, divisor: Estimate) -> Self:
        """Return the quotient of this estimate and a positive one, as if both were independent.

        On either side, two squared half-widths add up: that of this estimate over the divisor, and that of
        the divisor's inverse times this estimate. One end is infinite if the divisor may be zero.
        """
        ratio = self.mean / divisor.mean
        shorter = 1 - divisor.mean / divisor.high
        longer = divisor.mean / divisor.low - 1 if divisor.low > 0 else math.inf
        below, above = (shorter, longer) if ratio > 0 else (longer, shorter)
        down = math.hypot((self.mean - self.low) / divisor.mean, ratio * below)
        up = math.hypot((self.high - self.mean) / divisor.mean, ratio * above)
        return type(self)(ratio, ratio - down, ratio + up, min(self.n, divisor.n), self.method)

    def rest(self) -> Self:
        """Return one minus this share; the ends of the interval change places."""
        return type(self)(1 - self.mean, 1 - self.high, 1 - self.low, self.n, self.method)

    def scaled(self, factor: float) -> Self:
        """Return this estimate times a positive constant."""
        mean, low, high = self.mean * factor, self.low * factor, self.high * factor
        return type(self)(mean, low, high, self.n, self.method)


def t_interval(values: Sequence[float], tail: float) -> tuple[float, float]:
    """Return the ends of Student's interval of a mean; each end is wrong with the probability ``tail``."""
    from scipy.special import stdtrit  # importing scipy would slow down the start of the parent

    mean, n = statistics.fmean(values), len(values)
    half = float(stdtrit(n - 1, 1 - tail)) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def binomial_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided interval of a success rate from counts.

    It is the exact interval of Clopper & Pearson, Biometrika 26 (1934), which is never too narrow. There must
    be a trial.
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return low, high
