"""Means over launches, with their intervals."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Literal, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

CONFIDENCE = 0.95
_FEWEST_FOR_T = 3


class Estimate(msgspec.Struct, frozen=True):
    """A mean over launches, with an interval."""

    mean: float
    low: float
    high: float
    n: int
    """Launches behind it."""
    method: Literal["t", "range"]
    """``t``: Student's 95 % interval of the mean. ``range``: smallest and largest, of fewer than three."""

    @classmethod
    def of_log_ratios(cls, values: Iterable[float]) -> Self:
        """Estimate a geometric mean, as verdicts do: a ratio and its inverse then say the same."""
        logs = cls.of(values)
        return cls(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high), logs.n, logs.method)

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Estimate from one value a launch; there must be at least one."""
        values = list(values)
        mean = statistics.fmean(values)
        if len(values) < _FEWEST_FOR_T:
            return cls(mean, min(values), max(values), len(values), "range")
        half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half, len(values), "t")


def t_quantile(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    from scipy.special import stdtrit  # the parent starts without it

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
