"""Map values to positions, choose round values for the labels of an axis, and name what it shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from compare.report.cells import format_size, in_units
from compare.text import percent

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MOST_TICKS = 6
_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
_RATES = {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}


class AxisScale(NamedTuple):
    """A mapping of the values from ``low`` to ``high`` to the positions from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def pixel(self, value: float) -> float:
        """Return the position of a value, in the units of the picture."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 1)

    def pixel_within(self, value: float) -> float:
        """Return the position of a value, or that of the nearer end if it lies beyond the scale."""
        return self.pixel(min(max(value, self.low), self.high))

    def ticks(self) -> list[float]:
        """Return a few round values between ``low`` and ``high``, in ascending order."""
        return (log_ticks if self.is_log else linear_ticks)(self.low, self.high)


def axis_from_zero(values: Iterable[float], start: float, end: float) -> AxisScale:
    """Return a linear scale from zero to 2 % beyond the largest value, drawn from ``start`` to ``end``."""
    return AxisScale(0.0, max([*values, 0.0]) * 1.02 or 1.0, start, end)


def log_axis(values: Iterable[float], start: float, end: float) -> AxisScale:
    """Return a logarithmic scale with a margin around positive values, drawn from ``start`` to ``end``."""
    logs = [math.log(value) for value in values]
    margin = max(0.02, 0.06 * (max(logs) - min(logs)))
    return AxisScale(math.exp(min(logs) - margin), math.exp(max(logs) + margin), start, end, is_log=True)


def linear_ticks(low: float, high: float) -> list[float]:
    """Return round values from ``low`` to ``high``: at most six, or seven if both ends are round."""
    rough = (high - low) / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [_round(number * step) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return at most six round values for a logarithmic axis.

    If the ends differ by less than a factor of two, the values are those of ``linear_ticks``.
    """
    if high / low < 2:  # noqa: PLR2004
        return linear_ticks(low, high)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        values = [_round(step * 10.0**power) for power in powers for step in steps]
        values = [value for value in values if low <= value <= high]
        if len(values) <= _MOST_TICKS:
            return values
    return values[:: math.ceil(len(values) / _MOST_TICKS)]


def _round(value: float) -> float:
    """Return a value rounded to twelve digits, which removes errors of floating-point arithmetic."""
    return float(f"{value:.12g}")


class Axis(NamedTuple):
    """How one kind of value is shown on an axis."""

    name: str
    """What the axis shows; it has the unit, unless each label has one."""
    make_scale: Callable[[Iterable[float], float, float], AxisScale]
    """Returns a scale for all values between a start and an end."""
    label: Callable[[float], str]
    """Returns a value as text."""
    ticks: Callable[[AxisScale], Sequence[float]] = AxisScale.ticks
    """Returns the values that get a label."""


def count_axis(counts: Iterable[float], noun: str) -> Axis:
    """Return a logarithmic axis with a label at each count of things that are called ``noun``."""
    ticks = sorted(set(counts))
    return Axis(f"number of {noun}s (logarithmic)", log_axis, lambda count: f"{count:g}", lambda _: ticks)


def _time_label(seconds: float) -> str:
    return in_units(seconds, _SECONDS) if seconds else "0"


BYTES = Axis("message size (logarithmic)", log_axis, format_size)
SECONDS = Axis("time of one call (logarithmic)", log_axis, _time_label)
RATE = Axis("bus bandwidth (logarithmic)", log_axis, lambda rate: in_units(rate, _RATES))
SHARE = Axis("share of the ideal speed", axis_from_zero, lambda share: percent(share, "g"))
SECONDS_FROM_ZERO = Axis("time of one training step", axis_from_zero, _time_label)
