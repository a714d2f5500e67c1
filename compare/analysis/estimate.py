"""Estimate a mean over launches, or a rate from counts, with its confidence interval."""

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
    """Kind of interval: ``t`` is Student's 95 % interval of the mean, ``range`` spans one or two values."""

    @classmethod
    def geometric(cls, values: Iterable[float]) -> Self:
        """Estimate the geometric mean of one positive value or more, one for each launch.

        A ratio and its inverse then have inverse estimates, and the quotient of two means is the mean of the
        quotients. The interval is computed on the log scale, so neither end is negative.
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
        known = [value for value in values if value is not None]
        return cls.of(known) if known else None

    def exponential(self) -> Self:
        """Return e to the power of this estimate: the geometric mean, if this is the mean of logarithms."""
        return type(self)(math.exp(self.mean), math.exp(self.low), math.exp(self.high), self.n, self.method)

    def over(self, divisor: Estimate) -> Self:
        """Return this estimate divided by a positive one, as if the two were independent.

        On either side, two squared half-widths add up: that of this estimate divided by the divisor, and that
        of the divisor's inverse times this estimate. One end is infinite if the divisor may be zero.
        """
        ratio = self.mean / divisor.mean
        shorter = 1 - divisor.mean / divisor.high
        longer = divisor.mean / divisor.low - 1 if divisor.low > 0 else math.inf
        below, above = (shorter, longer) if ratio > 0 else (longer, shorter)
        down = math.hypot((self.mean - self.low) / divisor.mean, ratio * below)
        up = math.hypot((self.high - self.mean) / divisor.mean, ratio * above)
        return type(self)(ratio, ratio - down, ratio + up, min(self.n, divisor.n), self.method)

    def rest(self) -> Self:
        """Return one minus this estimate of a share; the ends of the interval change places."""
        return type(self)(1 - self.mean, 1 - self.high, 1 - self.low, self.n, self.method)

    def scaled(self, factor: float) -> Self:
        """Return this estimate times a positive constant."""
        mean, low, high = self.mean * factor, self.low * factor, self.high * factor
        return type(self)(mean, low, high, self.n, self.method)


def t_interval(values: Sequence[float], tail: float) -> tuple[float, float]:
    """Return the ends of Student's interval of the mean of two values or more.

    The true mean lies beyond each end with the probability ``tail``.
    """
    from scipy.special import stdtrit  # importing scipy would slow down the start of the parent

    mean, n = statistics.fmean(values), len(values)
    half = float(stdtrit(n - 1, 1 - tail)) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def binomial_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided interval of the success rate of one trial or more, at the confidence ``level``.

    It is the exact interval of Clopper & Pearson, Biometrika 26 (1934), which is never too narrow.
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return low, high
