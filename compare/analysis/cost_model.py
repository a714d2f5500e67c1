"""Model the time of collectives by latency and bandwidth, and the time of a training step that calls them.

The model is measured with some number of ranks on some link, and predicts others. A step is a timeline of its
backward pass and its calls, which starts at the end of the forward pass. A call starts once its bucket is
full and the call before has ended.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from typing import Literal, NamedTuple, TypeAlias

from compare.analysis.collectives import Form
from compare.analysis.figures import Estimate, LaunchFigures
from compare.schema.results import Launch, RankResult

Schedule: TypeAlias = Literal["after", "overlap", "fused", "shards"]
"""When the calls of a step run.

- ``after``: after the backward pass
- ``overlap``: during the backward pass, each as soon as its bucket is full
- ``fused``: one after another, each with all gradients that are ready by then
- ``shards``: before and after each unit computes, in forward and in backward
"""
MIB = 1 << 20
_DEFAULT_CAP_MIB = 25


class Call(NamedTuple):
    """The seconds of one collective call, or of several together, in two parts."""

    latency: float
    """Seconds that do not depend on the bytes."""
    wire: float
    """Seconds that grow with the bytes."""

    @property
    def seconds(self) -> float:
        """Return the sum of both parts."""
        return self.latency + self.wire


def split_collectives(launch: LaunchFigures) -> Call | None:
    """Split the measured seconds of a step's collectives, run without training, into latency and wire.

    The launch also timed a sweep of message sizes, whose curve has latency a and 1 / b seconds per byte. By
    that curve, n calls with S bytes together take n a + S / b. The measured time is divided in that
    proportion, so a sweep that ran slower than the collectives favours neither part. The latency is at most
    n a, because large messages may pass more slowly than those of the sweep.

    The result is None if the collectives were not timed, or if the sweep has fewer than two sizes or no
    cost, as where a step mixes several kinds of collectives. It is also None for several calls of a library
    that fuses them into an unknown number of messages.
    """
    seconds, points = launch.collective_seconds, sweep_points(launch.ranks)
    sizes = launch.ranks[0].message_bytes
    if launch.ranks[0].calls:
        return None
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


def seconds_by_size(launches: Sequence[Launch]) -> list[tuple[int, Estimate]]:
    """Return the sweep's message sizes in bytes, rising, each with the seconds that launches took for it."""
    points = sorted(point for launch in launches for point in sweep_points(launch.ranks))
    by_size = groupby(points, key=lambda point: point[0])
    return [(int(size), Estimate.geometric(seconds for _, seconds in same)) for size, same in by_size]


def sweep_points(
    ranks: Sequence[RankResult], take: Callable[[Iterable[float]], float] = statistics.median
) -> list[tuple[float, float]]:
    """Return every size of the sweep as (bytes, seconds), with rising bytes.

    The time of a sample is the mean over ranks. ``take`` reduces the samples of a size to one time.
    """
    points = []
    for sizes in zip(*(rank.sweep for rank in ranks), strict=True):
        samples = zip(*(sweep.ns for sweep in sizes), strict=True)
        points.append((float(sizes[0].message_bytes), take(map(statistics.fmean, samples)) / 1e9))
    return points


# ---- other numbers of ranks, and other links ----


class Curve(NamedTuple):
    """The measured time of a call as a function of the message size."""

    points: tuple[tuple[float, float], ...]
    """Two or more pairs of bytes and seconds, with rising bytes."""

    @property
    def latency(self) -> float:
        """Return how many seconds a message without any bytes would take.

        A straight line leads there from the smallest measured message; a negative result counts as 0.
        """
        size, seconds = self.points[0]
        return max(0.0, seconds - size * self.seconds_per_byte)

    @property
    def seconds_per_byte(self) -> float:
        """Return by how many seconds each further byte prolongs a message.

        It is averaged over all sizes from the smallest to the largest message; a negative result counts as 0.
        """
        (low, before), (high, after) = self.points[0], self.points[-1]
        return max(0.0, after - before) / (high - low)

    def seconds(self, nbytes: float) -> float:
        """Return how many seconds a message of ``nbytes`` takes.

        Between two measured sizes, a line connects the logarithms of size and time. A message that is smaller
        than all of them takes as long as the smallest one. Beyond the largest one, each byte adds
        `seconds_per_byte`.
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
    """Measured rate of a link divided by its predicted rate."""
    added_latency: float = 0.0
    """Seconds by which each transfer that waits for another one takes longer than measured."""


def predict_call(curve: Curve, form: Form, ranks: int, nbytes: float, network: Network) -> Call:
    """Predict the time of an all-reduce of ``nbytes`` on another network.

    ``curve`` was measured among ``ranks`` ranks, and ``form`` is the algorithm of the all-reduce. Latency
    grows with the algorithm's rounds, and the rest with the bytes of its busiest rank. TCP does not move all
    bytes in both directions at once, so sent and received bytes are added.
    """
    latency = max(0.0, curve.latency / form.rounds(ranks) + network.added_latency)
    growth = _traffic(form, network.ranks) / _traffic(form, ranks) * network.slowdown
    return Call(latency * form.rounds(network.ranks), (curve.seconds(nbytes) - curve.latency) * growth)


def _traffic(form: Form, ranks: int) -> float:
    return form.sent(ranks) + form.received(ranks)


def expected_maximum(residuals: Sequence[float], ranks: int) -> float:
    """Return the expected value of the largest of ``ranks`` residuals that are drawn with replacement.

    It is computed exactly, and not by simulation.
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
    """Seconds from the end of the forward pass until the gradient is ready."""


def simulate_calls(
    schedule: Schedule,
    gradients: Sequence[Gradient],
    messages: Sequence[float],
    backward: float,
    call: Callable[[float], Call],
    *,
    fusion_bytes: float = 0.0,
) -> tuple[float, Call]:
    """Return when the backward pass and all calls have ended, and the time of all calls together.

    The end is in seconds from the end of the forward pass.

    Args:
        schedule: when the calls run.
        gradients: all gradients, in any order.
        messages: bytes of the calls in order; the schedule ``fused`` does not read them.
        backward: seconds of the backward pass.
        call: maps the bytes of a call to its time.
        fusion_bytes: most bytes that a call of the schedule ``fused`` sends, if it sends several gradients.
    """
    end, calls = 0.0, list[Call]()
    waiting = sorted(gradients, key=lambda gradient: gradient.ready)
    if schedule == "fused":
        while waiting:
            end = max(end, waiting[0].ready)
            nbytes, count = 0.0, 0
            for gradient in waiting:
                if gradient.ready > end or (count and nbytes + gradient.nbytes > fusion_bytes):
                    break
                nbytes, count = nbytes + gradient.nbytes, count + 1
            waiting = waiting[count:]
            calls.append(call(nbytes))
            end += calls[-1].seconds
    else:
        ready = [backward] * len(messages) if schedule == "after" else _ready_times(waiting, messages)
        for when, nbytes in zip(ready, messages, strict=True):
            calls.append(call(nbytes))
            end = max(when, end) + calls[-1].seconds
    return max(backward, end), Call(sum(one.latency for one in calls), sum(one.wire for one in calls))


def _ready_times(gradients: Sequence[Gradient], messages: Sequence[float]) -> list[float]:
    """Return the seconds at which each message's bucket is full; gradients fill the buckets in order."""
    filled = list(accumulate(gradient.nbytes for gradient in gradients))
    places = (bisect_left(filled, limit) for limit in accumulate(messages))
    return [gradients[min(place, len(gradients) - 1)].ready for place in places]


def ddp_buckets(gradients: Sequence[Gradient], cap_mb: float) -> list[float]:
    """Return the bytes of each bucket into which DDP sorts the gradients, in the order of their calls.

    A bucket is closed when it reaches the cap of ``cap_mb`` MiB. With DDP's default cap of 25 MiB, the first
    bucket has a cap of 1 MiB.
    """
    limits = [MIB if cap_mb == _DEFAULT_CAP_MIB else cap_mb * MIB]
    buckets, size = [], 0.0
    for gradient in sorted(gradients, key=lambda gradient: gradient.ready):
        size += gradient.nbytes
        if size >= limits[-1]:
            buckets.append(size)
            size, limits = 0.0, [cap_mb * MIB]
    return [*buckets, size] if size else buckets
