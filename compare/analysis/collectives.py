"""Derive times and bandwidths of collectives alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

import msgspec

from compare.analysis.forms import fitting
from compare.schema.collectives import CollectivesRun, Exchange, SizeTiming, SweepLaunch

_TOLERANCE = 0.05
"""Of the data on the wire: negotiation beside the message."""
_HEADER_BYTES = 66
"""Of a packet: Ethernet 14, IPv4 20, TCP with time stamps 32."""
_NAMED_FROM_BYTES = 64 << 10
"""Smaller messages tell no form, because of headers and negotiation."""

Status: TypeAlias = Literal["timed", "refused", "failed", "not run"]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of the iterations of all launches, in seconds per call."""

    median: float
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""
    minimum: float
    n: int
    """Iterations of all launches."""

    @property
    def share(self) -> float:
        """Return half of the distance of the quartiles, relative to the median."""
        return (self.high - self.low) / 2 / self.median


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a call on the busiest host's interface, over the message.

    It is that of the launch in the middle.
    """

    sent: float
    received: float
    sent_data: float
    """Without the headers of packets."""
    received_data: float


class GroupAtSize(msgspec.Struct, frozen=True, kw_only=True):
    """One group's collective of one size, as nccl-tests show it."""

    group: str
    collective: str
    message_bytes: int
    count: int
    """Elements on each rank, in the smaller buffer."""
    dtype: str
    operation: str
    root: int
    """-1 where there is none."""
    seconds: Spread | None
    """Of the slowest rank; None if there is no time."""
    algorithm_bandwidth: float | None
    """Message bytes over the median, per second."""
    bus_bandwidth: float | None
    """The same times ``bus_factor``."""
    wrong: int | None
    """Wrong elements on all ranks, in all launches; None for a barrier."""
    wire: Wire | None
    """Over several hosts only."""
    forms: list[str]
    """Algorithms whose bytes fit the wire; empty where nothing was counted."""
    other_form: bool
    """Whether the wire carried more than bus bandwidth supposes."""
    status: Status
    """``refused`` by the library at this size, or ``failed`` as a launch."""
    problem: str = ""
    """Why there is no time; empty if there is one."""


def summarise_sweeps(run: CollectivesRun) -> list[GroupAtSize]:
    """Return each exchange of each group at each size, in order."""
    measured = list(enumerate(run.config.measurements))
    return [
        _at_size(run, group, index, *measurement)
        for _, its in groupby(measured, lambda pair: pair[1][0])
        for of_exchange in [list(its)]
        for group in run.config.groups
        for index, measurement in of_exchange
    ]


def bus_factor(collective: str, ranks: int) -> float:
    """Return busbw over algbw.

    It is what each rank sends in an optimal algorithm, over the message (PERFORMANCE.md of nccl-tests).
    """
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}.get(
        collective, 1.0
    )


def why_no_forms(run: CollectivesRun) -> str:
    """Return why bytes name no form in this run, or nothing."""
    if len(run.hosts) == 1:
        return "the ranks of one host exchange bytes without a network"
    if any(host.slots > 1 for host in run.hosts):
        return "several ranks share a host, and forms are known for one rank a host"
    return ""


def _at_size(run: CollectivesRun, group: str, index: int, exchange: Exchange, nbytes: int) -> GroupAtSize:
    ranks = run.config.ranks
    launches = [launch for launch in run.launches if launch.group == group]
    timings = [rank.timings[index] for launch in launches for rank in launch.ranks]
    samples = [sample for launch in launches for sample in _slowest(launch, index)]
    seconds = _spread(samples) if samples else None
    status, problem = _problem(run, group, timings) if seconds is None else ("timed", "")
    bandwidth = nbytes / seconds.median if seconds and nbytes else None
    factor, wire = bus_factor(exchange.collective, ranks), _wire(launches, index, nbytes, exchange)
    named = wire and nbytes >= _NAMED_FROM_BYTES and not why_no_forms(run)
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
        forms=_forms(exchange.collective, ranks, wire) if named and wire else [],
        other_form=bool(
            named and wire and max(wire.sent_data, wire.received_data) > factor * (1 + _TOLERANCE)
        ),
        status=status,
        problem=problem,
    )


def _forms(collective: str, ranks: int, wire: Wire) -> list[str]:
    return [form.name for form in fitting(collective, ranks, wire.sent_data, wire.received_data, _TOLERANCE)]


def _wire(launches: Sequence[SweepLaunch], index: int, nbytes: int, exchange: Exchange) -> Wire | None:
    """Return the bytes of the busiest host, if hosts counted them."""
    busiest = []
    for launch in launches:
        timings = [rank.timings[index] for rank in launch.ranks if rank.timings[index].sent_bytes is not None]
        if timings:
            busiest.append(_busiest(timings, rooted=exchange.traits.rooted))
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


def _busiest(timings: Sequence[SizeTiming], *, rooted: bool) -> SizeTiming:
    """Return the busiest host's count; of equals the root's."""
    most = max(timings, key=_all_bytes)
    root = timings[0]
    return root if rooted and _all_bytes(root) >= (1 - _TOLERANCE) * _all_bytes(most) else most


def _all_bytes(timing: SizeTiming) -> float:
    return (timing.sent_bytes or 0.0) + (timing.received_bytes or 0.0)


def _slowest(launch: SweepLaunch, index: int) -> Iterator[float]:
    """Return the slowest rank's seconds in each iteration of a size."""
    for ns in zip(*(rank.timings[index].ns for rank in launch.ranks), strict=True):
        yield max(ns) / 1e9


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
