"""Derive times and bandwidths of collectives that run without training, and name their forms.

A form is an algorithm that a library may use. The bytes of its busiest rank tell it from other forms, even if
the network is slow or noisy. Bytes are relative to the message, with the size conventions of nccl-tests.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from compare.schema.collectives import CollectivesRun, Exchange, SizeTiming, SweepLaunch

_TOLERANCE = 0.05
"""Share of the data on the wire that may be negotiation and not the message."""
_HEADER_BYTES = 66
"""Bytes of a packet's headers: Ethernet 14, IPv4 20, TCP with time stamps 32."""
FORM_FROM_BYTES = 64 << 10
"""A message shows its form from this size on, because headers and negotiation outweigh smaller ones."""
OfRanks: TypeAlias = Callable[[int], float]
"""Maps a number of ranks, 2 or more, to a figure."""
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
        forms=[form.name for form in fitting(exchange.collective, ranks, *data)] if data else [],
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


# ---- forms ----


@dataclass(frozen=True, slots=True)
class Form:
    """An algorithm of a collective, with figures of its busiest rank.

    The busiest rank is the one with the largest sum of sent and received bytes.
    """

    name: str
    rounds: OfRanks
    """Number of transfers that wait for each other, if the message is not divided into segments."""
    sent: OfRanks
    """Bytes that the busiest rank sends, over those of the message."""
    received: OfRanks
    """Bytes that the busiest rank receives, over those of the message."""
    exists: Callable[[int], bool] = lambda n: n > 1
    """Whether n ranks can use the algorithm."""


def fitting(collective: str, n: int, sent: float, received: float) -> list[Form]:
    """Return the forms whose bytes agree with the counted ones.

    Either count may differ by a twentieth of the larger of the form's two figures.

    Args:
        collective: a key of ``FORMS``.
        n: the number of ranks, with one rank on each host.
        sent: counted bytes that the busiest host sent, over those of the message.
        received: counted bytes that the busiest host received, over those of the message.
    """
    found = []
    for form in FORMS[collective]:
        expected = form.sent(n), form.received(n)
        # The quieter direction carries acknowledgements, so its limit is not relative to its own bytes.
        limit = _TOLERANCE * max(expected)
        fits = abs(sent - expected[0]) <= limit and abs(received - expected[1]) <= limit
        if form.exists(n) and fits:
            found.append(form)
    return found


def halvings(n: int) -> int:
    """Return log2 of the largest power of two that is at most n."""
    return n.bit_length() - 1


def doublings(n: int) -> int:
    """Return log2 of n, rounded up."""
    return (n - 1).bit_length()


def others(n: int) -> float:
    """Return the share of the message that belongs to the other ranks, (n - 1) / n."""
    return (n - 1) / n


def _is_power_of_two(n: int) -> bool:
    return n > 1 and n.bit_count() == 1


def _folds(n: int) -> int:
    """Return 1 if n is no power of two, because the ranks beyond one then fold into others; else 0."""
    return 0 if _is_power_of_two(n) else 1


def _halving(n: int) -> float:
    """Return the share of the message that halving exchanges among the largest power of two of ranks."""
    return others(1 << halvings(n))


def _bruck(n: int) -> float:
    """Return the bytes that a rank sends in Bruck's all-to-all, over those of the message.

    Block i moves once for each bit that is set in i.
    """
    return sum(i.bit_count() for i in range(n)) / n


def _beyond_two(n: int) -> int:
    """Return 1 if a chain of n ranks has a rank that both receives and sends, else 0."""
    return 1 if n > 2 else 0  # noqa: PLR2004 -- the first and the last do not


FORMS: dict[str, tuple[Form, ...]] = {
    "all_reduce": (
        Form("ring", lambda n: 2 * (n - 1), lambda n: 2 * others(n), lambda n: 2 * others(n)),
        Form(
            "recursive doubling",
            lambda n: halvings(n) + 2 * _folds(n),
            lambda n: halvings(n) + _folds(n),
            lambda n: halvings(n) + _folds(n),
        ),
        # Open MPI folds by halves (coll_base_allreduce.c). Two ranks exchange halves. One of them gets both
        # sums, takes part for both, and returns the whole result.
        Form(
            "Rabenseifner",
            lambda n: 2 * halvings(n) + 3 * _folds(n),
            lambda n: 2 * _halving(n) + 1.5 * _folds(n),
            lambda n: 2 * _halving(n) + _folds(n),
        ),
        Form("binomial tree", lambda n: 2 * doublings(n), doublings, doublings),
        Form("linear", lambda _: 2, lambda n: n - 1, lambda n: n - 1),
    ),
    "all_gather": (
        Form("ring", lambda n: n - 1, others, others),
        Form("recursive doubling", halvings, others, others, _is_power_of_two),
        Form("Bruck", doublings, others, others),
        Form("neighbour exchange", lambda n: n / 2, others, others, lambda n: n % 2 == 0),
        Form("linear", lambda _: 1, others, others),
        Form("gather and binomial tree", lambda n: 1 + doublings(n), doublings, others),
    ),
    "reduce_scatter": (
        Form("ring", lambda n: n - 1, others, others),
        Form("recursive halving", halvings, others, others, _is_power_of_two),
        Form("pairwise", lambda n: n - 1, others, others),
        Form("ring all-reduce", lambda n: 2 * (n - 1), lambda n: 2 * others(n), lambda n: 2 * others(n)),
        Form("binomial tree and scatter", lambda n: 1 + doublings(n), others, doublings),
        Form("linear and scatter", lambda _: 2, others, lambda n: n - 1),
    ),
    "broadcast": (
        Form("binomial tree", doublings, doublings, lambda _: 0),
        Form("chain", lambda n: n - 1, lambda _: 1, _beyond_two),
        Form("scatter and ring", lambda n: doublings(n) + n - 1, lambda n: 2 * others(n), others),
        Form("linear", lambda _: 1, lambda n: n - 1, lambda _: 0),
    ),
    "reduce": (
        Form("binomial tree", doublings, lambda _: 0, doublings),
        Form("chain", lambda n: n - 1, _beyond_two, lambda _: 1),
        Form("reduce-scatter and gather", lambda n: n, others, lambda n: 2 * others(n)),
        Form("linear", lambda _: 1, lambda _: 0, lambda n: n - 1),
    ),
    "all_to_all": (
        Form("pairwise", lambda n: n - 1, others, others),
        Form("linear", lambda _: 1, others, others),
        Form("Bruck", doublings, _bruck, _bruck),
    ),
    "send_recv": (Form("direct", lambda _: 1, lambda _: 1, lambda _: 1),),
    "barrier": (Form("dissemination", doublings, lambda _: 0, lambda _: 0),),
}
"""The known forms of each collective, by its name."""
