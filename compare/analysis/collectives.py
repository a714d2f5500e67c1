"""Derive times and bandwidths of collectives that run without training, and name their algorithms.

An algorithm of a collective is called a form, such as ring. The bytes that its busiest rank sends and
receives tell it from other forms, even if the network is slow or noisy. Bytes are divided by those of the
message, whose size is counted as nccl-tests does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from compare.analysis.figures import OTHER_LOAD_LIMIT, Estimate, load_of_others
from compare.schema.collectives import CollectivesRun, Exchange, SizeTiming, SweepLaunch

_TOLERANCE = 0.05
"""Counted bytes may differ from a form's bytes by this share, because negotiation adds some."""
_HEADER_BYTES = 66
"""Bytes of a packet's headers: Ethernet 14, IPv4 20, TCP with time stamps 32."""
FORM_FROM_BYTES = 64 << 10
"""Forms are named from this message size on, because headers and negotiation outweigh smaller messages."""
OfRanks: TypeAlias = Callable[[int], float]
"""A function from a number of ranks, 2 or more, to a figure."""
Status: TypeAlias = Literal["timed", "refused", "failed", "not run"]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Distribution of a call's seconds over the timed iterations of all launches."""

    median: float
    low: float
    """The first quartile in seconds."""
    high: float
    """The third quartile in seconds."""
    minimum: float
    n: int
    """Number of iterations, over all launches."""

    @property
    def share(self) -> float:
        """Return half of the distance between the quartiles, as a share of the median."""
        return (self.high - self.low) / 2 / self.median


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one call on the busiest host's network interface, divided by the bytes of the message.

    They come from the launch with the median number of bytes.
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
    """Number of elements in the smaller of a rank's two buffers."""
    dtype: str
    operation: str
    root: int
    """Rank of the root; -1 if the collective has none."""
    seconds: Spread | None
    """Times of the slowest rank in each iteration, in seconds; None if nothing was timed."""
    launch_medians: Estimate | None
    """Median seconds of each launch: their geometric mean with its interval; None if nothing was timed."""
    algorithm_bandwidth: float | None
    """Message bytes over the median time, in bytes per second; None for a barrier or without times."""
    bus_bandwidth: float | None
    """Algorithm bandwidth times ``bus_factor``, in bytes per second."""
    wrong: int | None
    """Number of wrong result elements over all ranks and launches; None for a barrier or without times."""
    wire: Wire | None
    """Bytes on the busiest host's interface; None if no host counted any, and for a barrier."""
    forms: list[str]
    """Names of the algorithms whose bytes agree with the counted ones; empty if none does, or if none can."""
    other_form: bool
    """Whether the wire carried more data than the optimal algorithm of ``bus_factor`` needs."""
    status: Status
    """``refused``: the library refused this size; ``failed``: a launch failed before this size was timed."""
    problem: str = ""
    """Why nothing was timed; empty if something was."""


def summarise_sweeps(run: CollectivesRun) -> list[GroupAtSize]:
    """Return the figures of every group's collectives, ordered by collective, group and size.

    A collective counts separately with each dtype and operation.
    """
    measurements = list(enumerate(run.config.measurements))
    return [
        _at_size(run, group, index, exchange, nbytes)
        for exchange in run.config.exchanges
        for group in run.config.groups
        for index, (measured, nbytes) in measurements
        if measured == exchange
    ]


def quickest(rows: Iterable[GroupAtSize]) -> str:
    """Return the group that is quickest at one size; empty if none is clearly so.

    Its quartiles, and the interval of its launches' medians, must lie below those of all other groups. Groups
    without times, or with wrong results, do not count.
    """
    timed = [
        (row.seconds, row.launch_medians, row.group)
        for row in rows
        if row.seconds and row.launch_medians and not row.wrong
    ]
    if not timed:
        return ""
    first, *others = sorted(timed, key=lambda one: one[0].median)
    is_clear = all(
        first[0].high < spread.low and first[1].high < medians.low and medians.method == "t"
        for spread, medians, _ in others
    )
    return first[2] if is_clear else ""


def noisy_rounds(run: CollectivesRun) -> list[int]:
    """Return the numbers of the rounds with a launch beside which other processes used too many CPUs."""
    return sorted(
        {launch.round for launch in run.launches if load_of_others(launch.ranks) > OTHER_LOAD_LIMIT}
    )


def bus_factor(collective: str, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth for a collective and its number of ranks.

    In an optimal algorithm, each rank sends this number of bytes for each byte of the message (PERFORMANCE.md
    of nccl-tests).
    """
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}.get(
        collective, 1.0
    )


def why_no_forms(run: CollectivesRun) -> str:
    """Return why counted bytes cannot tell the algorithms of this run, as a clause; empty if they can."""
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
    by_launch = [
        [max(ns) / 1e9 for ns in zip(*(rank.timings[index].ns for rank in launch.ranks), strict=True)]
        for launch in launches
    ]
    samples = [seconds for of_launch in by_launch for seconds in of_launch]
    seconds = _spread(samples) if samples else None
    status, problem = _status(run, group, timings) if seconds is None else ("timed", "")
    bandwidth = nbytes / seconds.median if seconds and nbytes else None
    factor, wire = bus_factor(exchange.collective, ranks), _wire(launches, index, nbytes, exchange)
    shows_form = nbytes >= FORM_FROM_BYTES and not why_no_forms(run)
    data = (wire.sent_data, wire.received_data) if wire and shows_form else None
    return GroupAtSize(
        group=group,
        collective=exchange.collective,
        message_bytes=nbytes,
        count=exchange.count(nbytes, ranks),
        dtype=exchange.dtype,
        operation=exchange.operation,
        root=exchange.root,
        seconds=seconds,
        launch_medians=Estimate.geometric(map(statistics.median, filter(None, by_launch)))
        if samples
        else None,
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=bandwidth * factor if bandwidth else None,
        wrong=sum(timing.wrong for timing in timings) if seconds and nbytes else None,
        wire=wire,
        forms=[form.name for form in fitting_forms(exchange.collective, ranks, *data)] if data else [],
        other_form=data is not None and max(data) > factor * (1 + _TOLERANCE),
        status=status,
        problem=problem,
    )


def _wire(launches: Sequence[SweepLaunch], index: int, nbytes: int, exchange: Exchange) -> Wire | None:
    """Return the bytes on the busiest host's interface; None if no host counted any, or for a barrier.

    ``index`` is that of the measurement. In a rooted collective, the root's host counts as the busiest if no
    host has more bytes, apart from `_TOLERANCE`.
    """
    busiest = []
    for launch in launches:
        timings = [rank.timings[index] for rank in launch.ranks if rank.timings[index].sent_bytes is not None]
        if timings:
            most, root = max(timings, key=_all_bytes), timings[0]
            is_root = exchange.traits.rooted and _all_bytes(root) >= (1 - _TOLERANCE) * _all_bytes(most)
            busiest.append(root if is_root else most)
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


def _status(run: CollectivesRun, group: str, timings: Sequence[SizeTiming]) -> tuple[Status, str]:
    if refused := next((timing.refused for timing in timings if timing.refused), ""):
        return "refused", refused
    if failed := next((failure.message for failure in run.failures if failure.arm == group), ""):
        return "failed", failed
    return "not run", "it was stopped before"


# ---- forms ----


class Form(NamedTuple):
    """An algorithm of a collective, described by its busiest rank.

    That is the rank with the largest sum of sent and received bytes.
    """

    name: str
    rounds: OfRanks
    """Number of transfers that wait for each other in a row, if the message is sent whole."""
    sent: OfRanks
    """Bytes that the busiest rank sends, divided by those of the message."""
    received: OfRanks
    """Bytes that the busiest rank receives, divided by those of the message."""
    exists: Callable[[int], bool] = lambda n: n > 1
    """Whether a given number of ranks can use the algorithm."""


def fitting_forms(collective: str, n: int, sent: float, received: float) -> list[Form]:
    """Return the forms whose bytes agree with the counted ones, in the order of ``FORMS``.

    Either count may differ by a twentieth of the larger of the form's two figures.

    Args:
        collective: a key of ``FORMS``.
        n: the number of ranks, with one rank on each host.
        sent: counted bytes that the busiest host sent, divided by those of the message.
        received: counted bytes that the busiest host received, divided by those of the message.
    """
    forms = []
    for form in FORMS[collective]:
        expected = form.sent(n), form.received(n)
        # The quieter direction carries acknowledgements, so its limit is not relative to its own bytes.
        limit = _TOLERANCE * max(expected)
        fits = abs(sent - expected[0]) <= limit and abs(received - expected[1]) <= limit
        if form.exists(n) and fits:
            forms.append(form)
    return forms


def halvings(n: int) -> int:
    """Return log2 of n, rounded down."""
    return n.bit_length() - 1


def doublings(n: int) -> int:
    """Return log2 of n, rounded up."""
    return (n - 1).bit_length()


def others_share(n: int) -> float:
    """Return (n - 1) / n, the share that the other ranks hold if each of n holds an equal part."""
    return (n - 1) / n


def _is_power_of_two(n: int) -> bool:
    return n > 1 and n.bit_count() == 1


def _fold_count(n: int) -> int:
    """Return the number of steps, 1 or 0, in which ranks beyond a power of two hand over their data."""
    return 0 if _is_power_of_two(n) else 1


def _halving_share(n: int) -> float:
    """Return the share of a message that a rank sends in halvings among the largest power of two of ranks."""
    return others_share(1 << halvings(n))


def _bruck_share(n: int) -> float:
    """Return the bytes that a rank sends in Bruck's all-to-all, divided by those of the message.

    Of n equal blocks, block i is sent once for each bit that is set in i.
    """
    return sum(i.bit_count() for i in range(n)) / n


def _middle_rank(n: int) -> int:
    """Return 1 if a chain of n ranks has a middle rank, which both receives and sends; else 0."""
    return 1 if n > 2 else 0  # noqa: PLR2004 -- the first and the last do not


FORMS: dict[str, tuple[Form, ...]] = {
    "all_reduce": (
        Form("ring", lambda n: 2 * (n - 1), lambda n: 2 * others_share(n), lambda n: 2 * others_share(n)),
        Form(
            "recursive doubling",
            lambda n: halvings(n) + 2 * _fold_count(n),
            lambda n: halvings(n) + _fold_count(n),
            lambda n: halvings(n) + _fold_count(n),
        ),
        # Open MPI folds by halves (coll_base_allreduce.c). Two ranks exchange halves. One of them gets both
        # sums, takes part for both, and returns the whole result.
        Form(
            "Rabenseifner",
            lambda n: 2 * halvings(n) + 3 * _fold_count(n),
            lambda n: 2 * _halving_share(n) + 1.5 * _fold_count(n),
            lambda n: 2 * _halving_share(n) + _fold_count(n),
        ),
        Form("binomial tree", lambda n: 2 * doublings(n), doublings, doublings),
        Form("linear", lambda _: 2, lambda n: n - 1, lambda n: n - 1),
    ),
    "all_gather": (
        Form("ring", lambda n: n - 1, others_share, others_share),
        Form("recursive doubling", halvings, others_share, others_share, _is_power_of_two),
        Form("Bruck", doublings, others_share, others_share),
        Form("neighbour exchange", lambda n: n / 2, others_share, others_share, lambda n: n % 2 == 0),
        Form("linear", lambda _: 1, others_share, others_share),
        Form("gather and binomial tree", lambda n: 1 + doublings(n), doublings, others_share),
    ),
    "reduce_scatter": (
        Form("ring", lambda n: n - 1, others_share, others_share),
        Form("recursive halving", halvings, others_share, others_share, _is_power_of_two),
        Form("pairwise", lambda n: n - 1, others_share, others_share),
        Form(
            "ring all-reduce",
            lambda n: 2 * (n - 1),
            lambda n: 2 * others_share(n),
            lambda n: 2 * others_share(n),
        ),
        Form("binomial tree and scatter", lambda n: 1 + doublings(n), others_share, doublings),
        Form("linear and scatter", lambda _: 2, others_share, lambda n: n - 1),
    ),
    "broadcast": (
        Form("binomial tree", doublings, doublings, lambda _: 0),
        Form("chain", lambda n: n - 1, lambda _: 1, _middle_rank),
        Form("scatter and ring", lambda n: doublings(n) + n - 1, lambda n: 2 * others_share(n), others_share),
        Form("linear", lambda _: 1, lambda n: n - 1, lambda _: 0),
    ),
    "reduce": (
        Form("binomial tree", doublings, lambda _: 0, doublings),
        Form("chain", lambda n: n - 1, _middle_rank, lambda _: 1),
        Form("reduce-scatter and gather", lambda n: n, others_share, lambda n: 2 * others_share(n)),
        Form("linear", lambda _: 1, lambda _: 0, lambda n: n - 1),
    ),
    "all_to_all": (
        Form("pairwise", lambda n: n - 1, others_share, others_share),
        Form("linear", lambda _: 1, others_share, others_share),
        Form("Bruck", doublings, _bruck_share, _bruck_share),
    ),
    "send_recv": (Form("direct", lambda _: 1, lambda _: 1, lambda _: 1),),
    "barrier": (Form("dissemination", doublings, lambda _: 0, lambda _: 0),),
}
"""The known algorithms of each collective, by the collective's name."""
