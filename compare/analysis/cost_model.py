"""Model the time of collectives: latency, bandwidth, and their growth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from compare.analysis.forms import Form
from compare.analysis.step_times import collective_seconds
from compare.schema.results import Launch


class Parts(NamedTuple):
    """Time of a step's collectives alone, in two parts."""

    seconds: float
    fixed_seconds: float
    """Independent of the messages' sizes; the rest grows with them."""


def split_collectives(launch: Launch) -> Parts | None:
    """Split the time of a step's collectives in two.

    The sweep's curve has latency a and 1 / b seconds per byte. It expects n a + S / b of n calls with S bytes
    together. The measured time is divided in that proportion. So a sweep that ran slower than the
    collectives favours neither part. The fixed part is at most n a, because large messages may pass more
    slowly than the sweep's. A library that fuses calls does not tell the number of messages: then there is
    no answer.
    """
    seconds, points, first = collective_seconds(launch), _sweep_points(launch), launch.ranks[0]
    sizes = first.message_bytes
    if len(sizes) > 1 and "fusion_bytes" in first.attestation["group"]:
        return None
    if not seconds or len(points) < 2:  # noqa: PLR2004 -- a line takes two
        return None
    curve = Curve(tuple(points))
    latencies = len(sizes) * curve.latency
    expected = latencies + sum(sizes) * curve.seconds_per_byte
    return Parts(seconds, min(seconds * latencies / expected, latencies)) if expected else None


def seconds_by_size(launches: Sequence[Launch]) -> list[tuple[int, float]]:
    """Return bytes and seconds of a group's all-reduce alone, over its launches."""
    times: dict[int, list[float]] = {}
    for launch in launches:
        for size, seconds in _sweep_points(launch):
            times.setdefault(int(size), []).append(seconds)
    return [(size, statistics.geometric_mean(seconds)) for size, seconds in sorted(times.items())]


def _sweep_points(launch: Launch) -> list[tuple[float, float]]:
    """Return bytes and seconds of every size in the sweep."""
    found = []
    for sizes in zip(*(rank.sweep for rank in launch.ranks), strict=True):
        samples = zip(*(sweep.ns for sweep in sizes), strict=True)
        found.append((float(sizes[0].message_bytes), statistics.median(map(statistics.fmean, samples)) / 1e9))
    return found


# ---- other numbers of ranks, and other links ----


class Curve(NamedTuple):
    """The time of a call over message sizes, as measured."""

    points: tuple[tuple[float, float], ...]
    """Bytes and seconds, with rising bytes; two or more."""

    @property
    def latency(self) -> float:
        """Return a call's time at the minimum size, without that of bytes."""
        size, seconds = self.points[0]
        return max(0.0, seconds - size * self.seconds_per_byte)

    @property
    def seconds_per_byte(self) -> float:
        """Return one over the bandwidth, from the largest message."""
        (low, before), (high, after) = self.points[0], self.points[-1]
        return max(0.0, after - before) / (high - low)

    def seconds(self, nbytes: float) -> float:
        """Return the time of a message.

        Between two sizes it is interpolated on log scales. Beyond the largest, its bandwidth continues.
        """
        size, seconds = self.points[0]
        if nbytes <= size:
            return seconds
        size, seconds = self.points[-1]
        if nbytes >= size:
            return seconds + (nbytes - size) * self.seconds_per_byte
        i = next(index for index, point in enumerate(self.points) if point[0] >= nbytes)
        (low, before), (high, after) = self.points[i - 1], self.points[i]
        share = math.log(nbytes / low) / math.log(high / low)
        return math.exp(math.log(before) * (1 - share) + math.log(after) * share)


class Call(NamedTuple):
    """The time of one call, in two parts."""

    latency: float
    wire: float

    @property
    def seconds(self) -> float:
        """Return both parts together."""
        return self.latency + self.wire


class Network(NamedTuple):
    """How a predicted network differs from the measured one.

    It is flat: each host has a link of its own, and all links are alike.
    """

    ranks: int
    slowdown: float = 1.0
    """Measured rate over the predicted rate."""
    added_latency: float = 0.0
    """Seconds that each round takes longer."""


def predict_call(curve: Curve, form: Form, ranks: int, nbytes: float, network: Network) -> Call:
    """Predict an all-reduce on another network, measured among ``ranks``.

    Latency grows with the form's rounds, and the rest with the bytes of its busiest rank. TCP does not move
    all bytes in both directions at once, so sent and received bytes are added.
    """
    latency = max(0.0, curve.latency / form.rounds(ranks) + network.added_latency)
    growth = _traffic(form, network.ranks) / _traffic(form, ranks) * network.slowdown
    return Call(latency * form.rounds(network.ranks), (curve.seconds(nbytes) - curve.latency) * growth)


def _traffic(form: Form, ranks: int) -> float:
    return form.sent(ranks) + form.received(ranks)


def expected_maximum(residuals: Sequence[float], ranks: int) -> float:
    """Return the mean of the largest of ``ranks`` resampled residuals.

    It is the exact mean over all resamples with replacement.
    """
    count = len(residuals)
    return sum(
        value * ((i / count) ** ranks - ((i - 1) / count) ** ranks)
        for i, value in enumerate(sorted(residuals), 1)
    )
