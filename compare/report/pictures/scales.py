"""Place values on an axis, linear or logarithmic, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Scale(NamedTuple):
    """An axis on which values from ``low`` to ``high`` lie between the pixels ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, own = self.low, self.high, value
        if self.is_log:
            low, high, own = math.log(low), math.log(high), math.log(value)
        return round(self.start + (self.end - self.start) * (own - low) / (high - low), 1)


def from_zero(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a linear axis from zero to beyond the largest value."""
    return Scale(0.0, max([*values, 0.0]) * 1.02 or 1.0, start, end)


def around(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a logarithmic axis that holds one or more values, all above zero, with a margin."""
    logs = [math.log(value) for value in values]
    margin = max(0.02, 0.06 * (max(logs) - min(logs)))
    return Scale(math.exp(min(logs) - margin), math.exp(max(logs) + margin), start, end, is_log=True)


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values between two ends: ``most`` or fewer, and one more if both ends are round."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [_round(number * step) for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return a few round values for a logarithmic axis.

    If the ends differ by less than a factor of two, the values are those of ``linear_ticks``. Otherwise there
    are at most ``most``.
    """
    if high / low < 2:  # noqa: PLR2004
        return linear_ticks(low, high, most)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [_round(step * 10.0**power) for power in powers for step in steps]
        found = [value for value in found if low <= value <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def _round(value: float) -> float:
    """Return a value with twelve digits, without the errors of floating-point arithmetic."""
    return float(f"{value:.12g}")


def byte_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most ``most`` powers of two between two ends, with the same factor between neighbours."""
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    stride = max(1, math.ceil(len(powers) / most))
    return [float(2**power) for power in powers[::stride]]
