"""Lay out a step's calls on a timeline, beside the backward pass.

Times count from the end of the forward pass. A call starts when its bucket is ready and the last call ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from compare.analysis.cost_model import Call

Schedule: TypeAlias = Literal["after", "overlap", "fused"]
"""Calls after backward, during it by buckets, or of what is ready."""
MIB = 1 << 20
DEFAULT_CAP_MB = 25


class Gradient(NamedTuple):
    """The gradient of one parameter."""

    nbytes: float
    ready: float
    """Seconds after the forward pass."""


class End(NamedTuple):
    """The end of the last call, and what the calls took."""

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
    """Return the end of backward and of all calls."""
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
    """Return when each bucket is full, as gradients fill them in order."""
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
    """Send all ready gradients in one call, again and again."""
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
    """Return the bytes of DDP's buckets for another cap.

    A bucket is closed when it reaches its limit. With the default cap the first limit is 1 MiB.
    """
    limits = [MIB if cap_mb == DEFAULT_CAP_MB else cap_mb * MIB]
    buckets, size = [], 0.0
    for gradient in sorted(gradients, key=lambda gradient: gradient.ready):
        size += gradient.nbytes
        if size >= limits[-1]:
            buckets.append(size)
            size, limits = 0.0, [cap_mb * MIB]
    return [*buckets, size] if size else buckets
