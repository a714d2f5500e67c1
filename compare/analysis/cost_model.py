"""Model the time of collectives by latency and bandwidth, and of steps that make them.

The model holds for other numbers of ranks and other links. A step's calls lie on a timeline, together with
its backward pass. Times count from the end of the forward pass. A call starts once its bucket is ready and
the last call ended.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

from compare.analysis.collectives import Form
from compare.analysis.figures import LaunchFigures
from compare.schema.results import Launch, RankResult

Schedule: TypeAlias = Literal["after", "overlap", "fused"]
"""When calls run: ``after`` backward, during it as buckets fill, or ``fused`` from all ready gradients."""
MIB = 1 << 20
_DEFAULT_CAP_MB = 25


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


def split_collectives(launch: LaunchFigures) -> Call | None:
    """Split the seconds of a step's collectives, which ran without training, into latency and wire.

    The sweep's curve has latency a and 1 / b seconds per byte. By that curve, n calls with S bytes together
    take n a + S / b. The measured time is divided in that proportion, so a sweep that ran slower than the
    collectives favours neither part. The latency is at most n a, because large messages may pass more slowly
    than the sweep's.

    None if the collectives were not timed, or the sweep has fewer than two sizes. A library that fuses calls
    does not tell how many messages it sends, so several calls of it give None too.
    """
    seconds, points = launch.collective_seconds, sweep_points(launch.ranks)
    sizes = launch.ranks[0].message_bytes
    fuses = "fusion_bytes" in launch.ranks[0].attestation["group"]
    if not seconds or len(points) < 2 or (fuses and len(sizes) > 1):  # noqa: PLR2004 -- a line takes two
        return None
    curve = Curve(tuple(points))
    latencies = len(sizes) * curve.latency
    expected = latencies + sum(sizes) * curve.seconds_per_byte
    if not expected:
        return None
    latency = min(seconds * latencies / expected, latencies)
    return Call(latency, seconds - latency)


def seconds_by_size(launches: Sequence[Launch]) -> list[tuple[int, float]]:
    """Return the sweep's sizes in bytes, rising, with the geometric mean over launches of the seconds."""
    points = sorted(point for launch in launches for point in sweep_points(launch.ranks))
    by_size = groupby(points, key=lambda point: point[0])
    return [(int(size), statistics.geometric_mean(seconds for _, seconds in own)) for size, own in by_size]


def sweep_points(
    ranks: Sequence[RankResult], take: Callable[[Iterable[float]], float] = statistics.median
) -> list[tuple[float, float]]:
    """Return bytes and seconds of every size in the sweep, with rising bytes.

    A sample's time is the mean over ranks. ``take`` is applied to the samples of each size.
    """
    found = []
    for sizes in zip(*(rank.sweep for rank in ranks), strict=True):
        samples = zip(*(sweep.ns for sweep in sizes), strict=True)
        found.append((float(sizes[0].message_bytes), take(map(statistics.fmean, samples)) / 1e9))
    return found


# ---- other numbers of ranks, and other links ----


class Curve(NamedTuple):
    """The measured time of a call as a function of the message size."""

    points: tuple[tuple[float, float], ...]
    """Bytes and seconds of two sizes or more, with rising bytes."""

    @property
    def latency(self) -> float:
        """How long an empty message takes, in seconds, as the smallest message suggests."""
        size, seconds = self.points[0]
        return max(0.0, seconds - size * self.seconds_per_byte)

    @property
    def seconds_per_byte(self) -> float:
        """How many seconds each byte adds, by the slope between the smallest and the largest message."""
        (low, before), (high, after) = self.points[0], self.points[-1]
        return max(0.0, after - before) / (high - low)

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of a message of ``nbytes``.

        Between two measured sizes, the time is interpolated on log scales. Below the smallest size it is that
        of the smallest, and beyond the largest it grows by `seconds_per_byte`.
        """
        import numpy as np

        sizes, times = np.array(self.points).T
        within = np.interp(np.log(max(nbytes, sizes[0])), np.log(sizes), np.log(times))
        return float(np.exp(within) + max(0.0, nbytes - sizes[-1]) * self.seconds_per_byte)


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


# ---- a step's timeline ----


class Gradient(NamedTuple):
    """The gradient of one parameter."""

    nbytes: float
    ready: float
    """Seconds from the end of the forward pass until it is ready."""


def lay_out(
    schedule: Schedule,
    gradients: Sequence[Gradient],
    messages: Sequence[float],
    backward: float,
    call: Callable[[float], Call],
    *,
    fusion_bytes: float = 0.0,
) -> tuple[float, Call]:
    """Return when the backward pass and all calls have ended, and the time of all calls together.

    The backward pass takes ``backward`` seconds. ``messages`` are the bytes of the calls in order, which
    ``call`` maps to times. The schedule ``fused`` reads ``fusion_bytes`` in place of ``messages``: each call
    sends all gradients that are ready, up to so many bytes.
    """
    end, calls = 0.0, list[Call]()
    waiting = sorted(gradients, key=lambda gradient: gradient.ready)
    if schedule == "fused":
        while waiting:
            end = max(end, waiting[0].ready)
            nbytes, taken = 0.0, 0
            for gradient in waiting:
                if gradient.ready > end or (taken and nbytes + gradient.nbytes > fusion_bytes):
                    break
                nbytes, taken = nbytes + gradient.nbytes, taken + 1
            waiting = waiting[taken:]
            calls.append(call(nbytes))
            end += calls[-1].seconds
    else:
        ready = [backward] * len(messages) if schedule == "after" else _ready_times(waiting, messages)
        for when, nbytes in zip(ready, messages, strict=True):
            calls.append(call(nbytes))
            end = max(when, end) + calls[-1].seconds
    return max(backward, end), Call(sum(one.latency for one in calls), sum(one.wire for one in calls))


def _ready_times(gradients: Sequence[Gradient], messages: Sequence[float]) -> list[float]:
    """Return when the bucket of each message is full; gradients fill the buckets in their order."""
    times, limit, filled, index = [], 0.0, 0.0, 0
    for nbytes in messages:
        limit += nbytes
        while index < len(gradients) - 1 and filled + gradients[index].nbytes < limit:
            filled += gradients[index].nbytes
            index += 1
        times.append(gradients[index].ready)
    return times


def ddp_buckets(gradients: Sequence[Gradient], cap_mb: float) -> list[float]:
    """Return the bytes of each of DDP's buckets, in order, with a cap in MiB.

    A bucket is closed when it reaches the cap. With the default cap, the first bucket has a cap of 1 MiB.
    """
    limits = [MIB if cap_mb == _DEFAULT_CAP_MB else cap_mb * MIB]
    buckets, size = [], 0.0
    for gradient in sorted(gradients, key=lambda gradient: gradient.ready):
        size += gradient.nbytes
        if size >= limits[-1]:
            buckets.append(size)
            size, limits = 0.0, [cap_mb * MIB]
    return [*buckets, size] if size else buckets
