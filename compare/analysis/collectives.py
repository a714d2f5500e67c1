"""Derive times and bandwidths of collectives that run without training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from compare.analysis.forms import FORM_FROM_BYTES, fitting
from compare.schema.collectives import CollectivesRun, Exchange, SizeTiming, SweepLaunch

_TOLERANCE = 0.05
"""Share of the data on the wire that may be negotiation and not the message."""
_HEADER_BYTES = 66
"""Bytes of a packet's headers: Ethernet 14, IPv4 20, TCP with time stamps 32."""

Status: TypeAlias = Literal["timed", "refused", "failed", "not run"]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a call's seconds over the timed iterations of all launches."""

    median: float
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""
    minimum: float
    n: int
    """Number of iterations, over all launches."""

    @property
    def share(self) -> float:
        """Return half of the distance between the quartiles, relative to the median."""
        return (self.high - self.low) / 2 / self.median


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a call on the interface of the busiest host, divided by the bytes of the message.

    Among several launches, the one with the median number of bytes is taken.
    """

    sent: float
    received: float
    sent_data: float
    """Sent bytes without the headers of packets."""
    received_data: float
    """Received bytes without the headers of packets."""


class GroupAtSize(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one group's collective at one size, by the conventions of nccl-tests."""

    group: str
    collective: str
    message_bytes: int
    count: int
    """Elements on each rank, in the smaller buffer."""
    dtype: str
    operation: str
    root: int
    """Rank of the root; -1 if the collective has none."""
    seconds: Spread | None
    """Times of the slowest rank in each iteration; None if nothing was timed."""
    algorithm_bandwidth: float | None
    """Message bytes over the median time, in bytes per second; None for a barrier or without times."""
    bus_bandwidth: float | None
    """Algorithm bandwidth times ``bus_factor``, in bytes per second."""
    wrong: int | None
    """Number of wrong elements on all ranks in all launches; None for a barrier or without times."""
    wire: Wire | None
    """Bytes on the busiest host's interface; None if no host counted any, and for a barrier."""
    forms: list[str]
    """Names of the algorithms whose bytes fit the wire; empty if bytes name no algorithm."""
    other_form: bool
    """Whether the wire carried more data than ``bus_factor`` supposes."""
    status: Status
    """``refused``: the library refused this size; ``failed``: a launch of the group failed."""
    problem: str = ""
    """Why nothing was timed; empty if something was."""


def summarise_sweeps(run: CollectivesRun) -> list[GroupAtSize]:
    """Return the figures of every group's exchanges, ordered by exchange, group and size."""
    measured = list(enumerate(run.config.measurements))
    return [
        _at_size(run, group, index, exchange, nbytes)
        for exchange in run.config.exchanges
        for group in run.config.groups
        for index, (its, nbytes) in measured
        if its == exchange
    ]


def bus_factor(collective: str, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth.

    In an optimal algorithm, each rank sends so many bytes for each byte of the message (PERFORMANCE.md of
    nccl-tests).
    """
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}.get(
        collective, 1.0
    )


def why_no_forms(run: CollectivesRun) -> str:
    """Return why counted bytes cannot name a form in this run; empty if they can."""
    if len(run.hosts) == 1:
        return "the ranks of one host exchange bytes without a network"
    if any(host.slots > 1 for host in run.hosts):
        return "several ranks share a host, and forms are known for one rank a host"
    return ""


def _at_size(run: CollectivesRun, group: str, index: int, exchange: Exchange, nbytes: int) -> GroupAtSize:
    ranks = run.config.ranks
    launches = [launch for launch in run.launches if launch.group == group]
    timings = [rank.timings[index] for launch in launches for rank in launch.ranks]
    # An iteration takes as long as its slowest rank.
    samples = [
        max(ns) / 1e9
        for launch in launches
        for ns in zip(*(rank.timings[index].ns for rank in launch.ranks), strict=True)
    ]
    seconds = _spread(samples) if samples else None
    status, problem = _problem(run, group, timings) if seconds is None else ("timed", "")
    bandwidth = nbytes / seconds.median if seconds and nbytes else None
    factor, wire = bus_factor(exchange.collective, ranks), _wire(launches, index, nbytes, exchange)
    named = wire if nbytes >= FORM_FROM_BYTES and not why_no_forms(run) else None
    data = (named.sent_data, named.received_data) if named else None
    return GroupAtSize(
        group=group,
        collective=exchange.collective,
        message_bytes=nbytes,
        count=exchange.count(nbytes, ranks),
        dtype=exchange.dtype,
        operation=exchange.operation,
        root=exchange.root,
        seconds=seconds,
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=bandwidth * factor if bandwidth else None,
        wrong=sum(timing.wrong for timing in timings) if seconds and nbytes else None,
        wire=wire,
        forms=[form.name for form in fitting(exchange.collective, ranks, *data, _TOLERANCE)] if data else [],
        other_form=data is not None and max(data) > factor * (1 + _TOLERANCE),
        status=status,
        problem=problem,
    )


def _wire(launches: Sequence[SweepLaunch], index: int, nbytes: int, exchange: Exchange) -> Wire | None:
    """Return the wire bytes of the busiest host; None if no host counted them, or for a barrier.

    In a rooted collective, the root's host counts as the busiest if it has as many bytes within `_TOLERANCE`.
    """
    busiest = []
    for launch in launches:
        timings = [rank.timings[index] for rank in launch.ranks if rank.timings[index].sent_bytes is not None]
        if timings:
            most, root = max(timings, key=_all_bytes), timings[0]
            takes_root = exchange.traits.rooted and _all_bytes(root) >= (1 - _TOLERANCE) * _all_bytes(most)
            busiest.append(root if takes_root else most)
    if not busiest or not nbytes:
        return None
    middle = sorted(busiest, key=_all_bytes)[len(busiest) // 2]
    sent, received = middle.sent_bytes or 0.0, middle.received_bytes or 0.0
    return Wire(
        sent=sent / nbytes,
        received=received / nbytes,
        sent_data=(sent - _HEADER_BYTES * middle.sent_packets) / nbytes,
        received_data=(received - _HEADER_BYTES * middle.received_packets) / nbytes,
    )


def _all_bytes(timing: SizeTiming) -> float:
    return (timing.sent_bytes or 0.0) + (timing.received_bytes or 0.0)


def _spread(samples: Sequence[float]) -> Spread:
    several = samples if len(samples) > 1 else [*samples, *samples]
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    return Spread(median=median, low=low, high=high, minimum=min(samples), n=len(samples))


def _problem(run: CollectivesRun, group: str, timings: Sequence[SizeTiming]) -> tuple[Status, str]:
    if refused := next((timing.refused for timing in timings if timing.refused), ""):
        return "refused", refused
    if failed := next((failure.message for failure in run.failures if failure.arm == group), ""):
        return "failed", failed
    return "not run", "it was stopped before"
