"""Take from a run what predictions need, or state what is missing, and predict one step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

import msgspec

from compare.analysis.budget import is_oversubscribed
from compare.analysis.collectives import FORMS, Form, others_share
from compare.analysis.cost_model import (
    Call,
    Curve,
    Gradient,
    Network,
    Schedule,
    ddp_buckets,
    expected_maximum,
    predict_call,
    simulate_calls,
    sweep_points,
)
from compare.analysis.figures import LaunchFigures
from compare.schema.arms import Arm
from compare.schema.hosts import Link
from compare.schema.results import Launch, RankResult, Run

_FORM_BY_LIBRARY = {
    "torch.distributed gloo": "ring",
    "torch.distributed nccl": "ring",
    "Open MPI": "Rabenseifner",
    "Horovod": "ring",
}
"""The algorithm by which each library sums up large messages over all ranks, as counted bytes have shown.

Horovod over MPI has that of Open MPI.
"""
_FORM_BY_CALL = {("torch.distributed gloo", "reduce_scatter"): "ring all-reduce"}
"""The algorithm of a collective of torch.distributed where it is not a ring, as counted bytes have shown."""
Limit: TypeAlias = Literal["computing", "bandwidth", "latency", "skew", "copies"]
GOODPUT = {"ring": 0.94, "Rabenseifner": 0.64}
"""Share of a link's rate that all-reduces reached in measurements with known links, by algorithm.

If the rate of a measured link is not known, it is estimated with this share.
"""

MODES_WITHOUT_ALL_REDUCE = {"shared_memory", "ring", "reduce_broadcast", "reduce_scatter", "all_gather"}
"""Modes of ``manual`` whose calls are not the all-reduce that the sweep times."""


class MeasuredLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What a prediction needs from one launch of an arm, with times in seconds and sizes in bytes."""

    arm: str
    ranks: int
    library: str
    """Name of the group's library, without its version."""
    form: str
    """Name of the algorithm of the library's large all-reduces, as in ``FORMS``."""
    schedule: Schedule
    step_seconds: float
    """Seconds per step with synchronisation."""
    forward_seconds: float
    """Seconds of the forward pass, in a step without synchronisation."""
    backward_seconds: float
    """Seconds of the backward pass, in a step without synchronisation."""
    optimizer_seconds: float
    """Seconds of the optimizer, in a step without synchronisation."""
    gradients: list[tuple[float, float]]
    """Bytes of each gradient, and the seconds from the end of the forward pass until it is ready."""
    messages: list[float]
    """Bytes of each call in a step."""
    shares: list[float] = []
    """For each call of a step in shards, its bytes and rounds divided by those of a ring all-reduce.

    The list is empty if every call is an all-reduce.
    """
    points: list[tuple[float, float]]
    """Message bytes and seconds of the group's all-reduce without training, with rising bytes."""
    residuals: list[float]
    """For each step of each rank: seconds of computing minus the mean seconds of that rank."""
    fusion_bytes: float = 0.0
    """Maximum number of bytes that the library fuses into one message; 0 if it does not fuse."""
    bits_per_second: int | None = None
    """Rate of the measured link; None if it is not known."""
    latency_seconds: float = 0.0
    """Latency of the measured link in seconds; 0 if it is not known."""

    @property
    def compute_seconds(self) -> float:
        """Return the seconds of a step without synchronisation."""
        return self.forward_seconds + self.backward_seconds + self.optimizer_seconds

    @property
    def curve(self) -> Curve:
        """Return the measured time of an all-reduce as a function of its size."""
        return Curve(tuple(self.points))

    @property
    def all_reduce(self) -> Form:
        """Return the algorithm of the library's large all-reduces."""
        return next(form for form in FORMS["all_reduce"] if form.name == self.form)

    @property
    def ready(self) -> list[Gradient]:
        """Return the gradients with the times at which they are ready, none after the backward pass."""
        return [Gradient(nbytes, min(when, self.backward_seconds)) for nbytes, when in self.gradients]


def why_unpredictable(run: Run, arm: Arm) -> str:
    """Return a clause for why no step of the arm can be predicted from this run; empty if it can."""
    launches = run.of(arm)
    if run.is_bare(arm):
        return "it was timed without its collectives, because they did not fit into memory"
    return next(_reasons_of_launches(run, launches), "") if launches else "it has no launch"


def _reasons_of_launches(run: Run, launches: list[Launch]) -> Iterator[str]:
    ranks = launches[0].ranks
    first, transport = ranks[0], ranks[0].attestation["group"]["transport"]
    if run.config.accumulate > 1:
        yield "predictions have no model of the passes of --accumulate"
    if len(ranks) < 2:  # noqa: PLR2004 -- one rank sends nothing
        yield "one rank sends nothing, so no network was measured"
    over_nccl = transport == "NCCL" and len(run.hosts) > 1
    if "TCP" not in transport and not over_nccl:
        yield f"its bytes travelled by {transport}, not between hosts"
    if any(host.slots > 1 for host in run.hosts) and len(run.hosts) > 1:
        yield "several ranks on a host share a link, and predictions have no model of that"
    yield from _reasons_of_calls(first)
    figures = [LaunchFigures(launch) for launch in launches]
    phases = [next(iter(one.phases("reference")), {}) for one in figures]
    if not all(one.reference_seconds for one in figures) or not all("forward" in names for names in phases):
        yield "its run timed no steps without synchronisation"
    if not first.gradients:
        yield "its run recorded no times of gradients, so measure it again"
    if is_oversubscribed(run) and _bound_by_latency(first):
        yield "its ranks waited for cores, so latency was not measured"


def _reasons_of_calls(rank: RankResult) -> Iterator[str]:
    group, replica = rank.attestation["group"], rank.attestation.get("replica", {})
    if not rank.message_bytes or replica.get("comm_hook", "none") != "none":
        yield "its calls are not an all-reduce of its gradients"
    if any(call.ranks for call in rank.calls):
        yield "predictions have no model of replicas in shards"
    if any(call.collective == "broadcast" for call in rank.calls):
        yield "predictions have no model of its broadcasts"
    if rank.calls and library_of(rank) != "torch.distributed gloo":
        yield "its collectives overlap with computing, and predictions have no model of that"
    if replica.get("mode") in MODES_WITHOUT_ALL_REDUCE:
        yield f"predictions have no model of mode={replica['mode']}"
    if len(rank.sweep) < 2:  # noqa: PLR2004 -- a curve takes two
        yield "its run has no sweep of message sizes"
    if not form_of(rank):
        yield f"the algorithm of {group.get('library', 'its library')} is not known"


def _bound_by_latency(rank: RankResult) -> bool:
    curve = Curve(tuple((sweep.message_bytes, min(sweep.ns)) for sweep in rank.sweep))
    calls = [predict_call(curve, FORMS["all_reduce"][0], 2, size, Network(2)) for size in rank.message_bytes]
    return sum(call.latency for call in calls) > sum(call.wire for call in calls)


def library_of(rank: RankResult) -> str:
    """Return the name of the group's library, without its version if predictions know the library."""
    attested = str(rank.attestation["group"].get("library", ""))
    return next((name for name in _FORM_BY_LIBRARY if attested.startswith(name)), attested)


def form_of(rank: RankResult) -> str:
    """Return the name of the algorithm of the library's large all-reduces; empty if it is not known."""
    by_mpi = rank.attestation["group"].get("controller") == "mpi"
    return _FORM_BY_LIBRARY.get("Open MPI" if by_mpi else library_of(rank), "")


def sent_by_call(library: str, collective: str, ranks: int) -> float:
    """Return the bytes that a rank sends in a call of torch.distributed, divided by those of its message.

    It is the mean over the ranks that take part. ``library`` is that of `library_of`.
    """
    if ranks < 2:  # noqa: PLR2004 -- one rank sends nothing
        return 0.0
    if collective == "broadcast":
        return others_share(ranks)  # all but the root receive it once
    name = _FORM_BY_CALL.get((library, collective), "ring")
    return next(form for form in FORMS[collective] if form.name == name).sent(ranks)


def schedule_of(rank: RankResult) -> Schedule:
    """Return when the calls of a step run, by the strategy and the library that the rank attests."""
    replica = rank.attestation.get("replica", {})
    if rank.calls:
        return "shards"
    if replica.get("mode") == "optimizer":
        return "fused"
    # MPI makes progress only inside its calls, so nothing overlaps.
    overlaps = "bucket_bytes" in replica or replica.get("mode") == "overlap"
    return "overlap" if overlaps and library_of(rank) != "Open MPI" else "after"


def measured_launches(run: Run, arm: Arm) -> list[MeasuredLaunch]:
    """Return what predictions need from each launch of an arm, in the order of launches.

    `why_unpredictable` must be empty for the arm.
    """
    return [_measured_launch(launch, run.network.rehearsed) for launch in run.of(arm)]


def _measured_launch(launch: Launch, link: Link | None) -> MeasuredLaunch:
    first, figures = launch.ranks[0], LaunchFigures(launch)
    compute, phases = figures.reference_seconds or 0.0, figures.phases("reference")
    medians = {name: sum(statistics.median(rank[name]) for rank in phases) for name in phases[0]}
    shares = {name: median / sum(medians.values()) for name, median in medians.items()}
    steps = [[sum(times) / 1e9 for times in zip(*rank.values(), strict=True)] for rank in phases]
    sizes, seconds = zip(*sweep_points(launch.ranks, min), strict=True)
    return MeasuredLaunch(
        arm=launch.arm,
        ranks=len(launch.ranks),
        library=library_of(first),
        form=form_of(first),
        schedule=schedule_of(first),
        step_seconds=figures.step_seconds,
        forward_seconds=compute * shares["forward"],
        backward_seconds=compute * shares["backward"],
        optimizer_seconds=compute * (1 - shares["forward"] - shares["backward"]),
        gradients=[
            (same[0].gradient_bytes, statistics.fmean(statistics.median(one.ready_ns) for one in same) / 1e9)
            for same in zip(*(rank.gradients for rank in launch.ranks), strict=True)
        ],
        messages=[float(size) for size in first.message_bytes],
        shares=[_share_of_all_reduce(library_of(first), call.collective) for call in first.calls],
        # Other programs only make calls slower. No point is faster than one of a smaller message.
        points=list(zip(sizes, accumulate(seconds, max), strict=True)),
        residuals=[step - statistics.fmean(of_rank) for of_rank in steps for step in of_rank],
        fusion_bytes=float(first.attestation["group"].get("fusion_bytes", 0)),
        bits_per_second=link.bits_per_second if link else None,
        latency_seconds=link.latency_seconds if link else 0.0,
    )


def _share_of_all_reduce(library: str, collective: str) -> float:
    """Return the rounds and bytes of a collective's ring, divided by those of a ring all-reduce.

    A ring all-reduce is a reduce-scatter followed by an all-gather, so the share is the same among any number
    of ranks.
    """
    whole = collective == "all_reduce" or (library, collective) in _FORM_BY_CALL
    return 1.0 if whole else 0.5


# ---- one step elsewhere ----


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a step is predicted for: hosts with one rank each, their link, and DDP's buckets."""

    hosts: int
    link: Link | None = None
    """The link between the hosts; None for the measured one."""
    bucket_cap_mb: float | None = None
    """Cap of DDP's buckets in MiB; None for the measured buckets."""


class PredictedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted step."""

    seconds: float
    parts: dict[Limit, float]
    """Seconds of each part; calls may overlap with computing, so the sum may exceed the step.

    - *computing*: the step without synchronisation
    - *latency* and *bandwidth*: the part of all calls that does not depend on their bytes, and the rest
    - *skew*: the expected wait for the slowest rank
    - *copies*: what the measured step took beyond computing and calls, as it applies to this step
    """
    calls: int
    """Number of calls in the step."""


def network_of(measured: MeasuredLaunch, target: Target) -> Network:
    """Return how the network of a target differs from the one that was measured.

    If the target has no link, or one without a rate, only the number of hosts differs. If the rate of the
    measured link is not known, it is estimated from the largest message and ``GOODPUT``.
    """
    if target.link is None or target.link.bits_per_second is None:
        return Network(target.hosts)
    rate = float(measured.bits_per_second or 0)
    if not rate:
        nbytes, seconds = measured.points[-1]
        sent = 8 * nbytes * measured.all_reduce.sent(measured.ranks)
        rate = sent / (seconds - measured.curve.latency or seconds) / GOODPUT[measured.form]
    added = target.link.latency_seconds - measured.latency_seconds
    return Network(target.hosts, rate / target.link.bits_per_second, added)


def predict_step(measured: MeasuredLaunch, target: Target) -> PredictedStep:
    """Predict a step of the target from one measured launch; it is never shorter than its computing."""
    measured_end, _ = _timeline(measured, Network(measured.ranks), measured.messages)
    messages = measured.messages
    if target.bucket_cap_mb is not None:
        messages = ddp_buckets(measured.ready, target.bucket_cap_mb)
    end, calls = _timeline(measured, network_of(measured, target), messages)
    rest, added = measured.step_seconds - measured_end, measured_end - measured.compute_seconds
    if rest < 0 < added:
        # Calls took less time in the measured step than alone. This gain shrinks with the calls.
        rest *= min(1.0, (end - measured.compute_seconds) / added)
    skew = expected_maximum(measured.residuals, target.hosts)
    added_skew = skew - expected_maximum(measured.residuals, measured.ranks)
    return PredictedStep(
        seconds=max(measured.compute_seconds, end + rest + added_skew),
        parts={
            "computing": measured.compute_seconds,
            "bandwidth": calls.wire,
            "latency": calls.latency,
            "skew": skew,
            "copies": rest,
        },
        calls=len(messages),
    )


def _timeline(measured: MeasuredLaunch, network: Network, messages: Sequence[float]) -> tuple[float, Call]:
    """Return the modelled seconds of a step with its computing and calls, and the time of all its calls."""

    def call(nbytes: float) -> Call:
        return predict_call(measured.curve, measured.all_reduce, measured.ranks, nbytes, network)

    if measured.schedule == "shards":  # over Gloo, computing waits for each call
        of_step = [(call(nbytes), share) for nbytes, share in zip(messages, measured.shares, strict=True)]
        latency = sum(one.latency * share for one, share in of_step)
        calls = Call(latency, sum(one.wire * share for one, share in of_step))
        return measured.compute_seconds + calls.seconds, calls
    end, calls = simulate_calls(
        measured.schedule,
        measured.ready,
        messages,
        measured.backward_seconds,
        call,
        fusion_bytes=measured.fusion_bytes,
    )
    return measured.forward_seconds + end + measured.optimizer_seconds, calls
