"""Lay out a step's calls on a timeline, together with the backward pass.

Times count from the end of the forward pass. A call starts once its bucket is ready and the last call ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from compare.analysis.cost_model import Call

Schedule: TypeAlias = Literal["after", "overlap", "fused"]
"""When calls run: ``after`` backward, during it as buckets fill, or ``fused`` from all ready gradients."""
MIB = 1 << 20
DEFAULT_CAP_MB = 25


class Gradient(NamedTuple):
    """The gradient of one parameter."""

    nbytes: float
    ready: float
    """Seconds from the end of the forward pass until it is ready."""


class End(NamedTuple):
    """When the backward pass and all calls have ended, and the time of all calls together."""

    seconds: float
    calls: Call


def lay_out(
    schedule: Schedule,
    gradients: Sequence[Gradient],
    messages: Sequence[float],
    backward: float,
    call: Callable[[float], Call],
    *,
    fusion_bytes: float = 0.0,
) -> End:
    """Return when the backward pass and all calls have ended.

    The backward pass takes ``backward`` seconds. ``messages`` are the bytes of the calls in order, which
    ``call`` maps to times. The schedule ``fused`` reads ``fusion_bytes`` in place of ``messages``.
    """
    if schedule == "fused":
        return _fuse(gradients, backward, call, fusion_bytes)
    ready = [backward] * len(messages) if schedule == "after" else _ready_times(gradients, messages)
    end, latency, wire = 0.0, 0.0, 0.0
    for when, nbytes in zip(ready, messages, strict=True):
        took = call(nbytes)
        end = max(when, end) + took.seconds
        latency, wire = latency + took.latency, wire + took.wire
    return End(max(backward, end), Call(latency, wire))


def _ready_times(gradients: Sequence[Gradient], messages: Sequence[float]) -> list[float]:
    """Return when the bucket of each message is full, if gradients fill the buckets as they become ready."""
    order = sorted(gradients, key=lambda gradient: gradient.ready)
    times, limit, filled, index = [], 0.0, 0.0, 0
    for nbytes in messages:
        limit += nbytes
        while index < len(order) - 1 and filled + order[index].nbytes < limit:
            filled += order[index].nbytes
            index += 1
        times.append(order[index].ready)
    return times


def _fuse(gradients: Sequence[Gradient], backward: float, call: Callable[[float], Call], limit: float) -> End:
    """Lay out calls that each send all gradients that are ready, up to ``limit`` bytes."""
    waiting = sorted(gradients, key=lambda gradient: gradient.ready)
    end, latency, wire = 0.0, 0.0, 0.0
    while waiting:
        end = max(end, waiting[0].ready)
        nbytes, taken = 0.0, 0
        for gradient in waiting:
            if gradient.ready > end or (taken and nbytes + gradient.nbytes > limit):
                break
            nbytes, taken = nbytes + gradient.nbytes, taken + 1
        waiting = waiting[taken:]
        took = call(nbytes)
        end, latency, wire = end + took.seconds, latency + took.latency, wire + took.wire
    return End(max(backward, end), Call(latency, wire))


def ddp_buckets(gradients: Sequence[Gradient], cap_mb: float) -> list[float]:
    """Return the bytes of each of DDP's buckets, in order, with a cap in MiB.

    A bucket is closed when it reaches the cap. With the default cap, the first bucket has a cap of 1 MiB.
    """
    limits = [MIB if cap_mb == DEFAULT_CAP_MB else cap_mb * MIB]
    buckets, size = [], 0.0
    for gradient in sorted(gradients, key=lambda gradient: gradient.ready):
        size += gradient.nbytes
        if size >= limits[-1]:
            buckets.append(size)
            size, limits = 0.0, [cap_mb * MIB]
    return [*buckets, size] if size else buckets
