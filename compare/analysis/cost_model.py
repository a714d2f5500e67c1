"""Model the time of collectives by latency and bandwidth, for other numbers of ranks and other links."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from compare.analysis.forms import Form
from compare.analysis.step_times import collective_seconds
from compare.schema.results import Launch


class Parts(NamedTuple):
    """Time of a step's collectives without training, in two parts."""

    seconds: float
    fixed_seconds: float
    """The part that does not depend on the sizes of the messages; the rest grows with them."""


def split_collectives(launch: Launch) -> Parts | None:
    """Split the seconds of a step's collectives into a fixed and a growing part.

    The sweep's curve has latency a and 1 / b seconds per byte. By that curve, n calls with S bytes together
    take n a + S / b. The measured time is divided in that proportion, so a sweep that ran slower than the
    collectives favours neither part. The fixed part is at most n a, because large messages may pass more
    slowly than the sweep's.

    None if the collectives were not timed, or the sweep has fewer than two sizes. A library that fuses calls
    does not tell how many messages it sends, so several calls of it give None too.
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
    """Return the sweep's sizes in bytes, rising, with the geometric mean over launches of the seconds."""
    times: dict[int, list[float]] = {}
    for launch in launches:
        for size, seconds in _sweep_points(launch):
            times.setdefault(int(size), []).append(seconds)
    return [(size, statistics.geometric_mean(seconds)) for size, seconds in sorted(times.items())]


def _sweep_points(launch: Launch) -> list[tuple[float, float]]:
    """Return bytes and seconds of every size in the sweep: the median over samples of the mean over ranks."""
    found = []
    for sizes in zip(*(rank.sweep for rank in launch.ranks), strict=True):
        samples = zip(*(sweep.ns for sweep in sizes), strict=True)
        found.append((float(sizes[0].message_bytes), statistics.median(map(statistics.fmean, samples)) / 1e9))
    return found


# ---- other numbers of ranks, and other links ----


class Curve(NamedTuple):
    """The measured time of a call as a function of the message size."""

    points: tuple[tuple[float, float], ...]
    """Bytes and seconds of two sizes or more, with rising bytes."""

    @property
    def latency(self) -> float:
        """Return the seconds that a message of no bytes would take, from the time of the smallest one."""
        size, seconds = self.points[0]
        return max(0.0, seconds - size * self.seconds_per_byte)

    @property
    def seconds_per_byte(self) -> float:
        """Return how many seconds each further byte takes, between the smallest and the largest message."""
        (low, before), (high, after) = self.points[0], self.points[-1]
        return max(0.0, after - before) / (high - low)

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of a message of ``nbytes``.

        Between two measured sizes, the time is interpolated on log scales. Below the smallest size it is that
        of the smallest, and beyond the largest it grows by `seconds_per_byte`.
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
    """The seconds of one call, or of several together, in two parts."""

    latency: float
    """Part that does not depend on the bytes."""
    wire: float
    """Part that grows with the bytes."""

    @property
    def seconds(self) -> float:
        """Return both parts together."""
        return self.latency + self.wire


class Network(NamedTuple):
    """How a predicted network differs from the measured one.

    The network is flat: each host has one link of its own, and all links are alike.
    """

    ranks: int
    """Number of ranks in the predicted network."""
    slowdown: float = 1.0
    """Measured rate of a link over its predicted rate."""
    added_latency: float = 0.0
    """Seconds by which each round takes longer than measured."""


def predict_call(curve: Curve, form: Form, ranks: int, nbytes: float, network: Network) -> Call:
    """Predict the time of an all-reduce on another network, from a curve measured among ``ranks``.

    Latency grows with the form's rounds, and the rest with the bytes of its busiest rank. TCP does not move
    all bytes in both directions at once, so sent and received bytes are added.
    """
    latency = max(0.0, curve.latency / form.rounds(ranks) + network.added_latency)
    growth = _traffic(form, network.ranks) / _traffic(form, ranks) * network.slowdown
    return Call(latency * form.rounds(network.ranks), (curve.seconds(nbytes) - curve.latency) * growth)


def _traffic(form: Form, ranks: int) -> float:
    return form.sent(ranks) + form.received(ranks)


def expected_maximum(residuals: Sequence[float], ranks: int) -> float:
    """Return the expected largest of ``ranks`` residuals that are drawn with replacement.

    The value is exact, because the distribution of the largest is known.
    """
    count = len(residuals)
    return sum(
        value * ((i / count) ** ranks - ((i - 1) / count) ** ranks)
        for i, value in enumerate(sorted(residuals), 1)
    )
