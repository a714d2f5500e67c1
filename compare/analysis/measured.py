"""Take from a run what predictions need, or say what is missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from compare.analysis.budget import is_oversubscribed
from compare.analysis.cost_model import Curve, Gradient, Network, Schedule, predict_call, sweep_points
from compare.analysis.figures import LaunchFigures
from compare.analysis.forms import FORMS, Form
from compare.schema.arms import Arm
from compare.schema.hosts import Link
from compare.schema.results import Launch, RankResult, Run

_FORMS = {"torch.distributed gloo": "ring", "torch.distributed nccl": "ring", "Open MPI": "Rabenseifner"}
"""The form of each library's all-reduce of large messages, which counted bytes have shown."""

OTHER_MODES = {"shared_memory", "ring", "reduce_broadcast", "reduce_scatter", "all_gather"}
"""Modes of ``manual`` whose calls are not the all-reduce that the sweep times."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a prediction needs from one launch of an arm; times are seconds, sizes bytes."""

    arm: str
    ranks: int
    library: str
    """Name of the group's library, without its version."""
    form: str
    """Name of the form of the library's large all-reduces."""
    schedule: Schedule
    step_seconds: float
    """Step time with synchronisation."""
    forward_seconds: float
    """Forward pass of a step without synchronisation."""
    backward_seconds: float
    """Backward pass of a step without synchronisation."""
    optimizer_seconds: float
    """Optimizer's part of a step without synchronisation."""
    gradients: list[tuple[float, float]]
    """Bytes of each gradient, and the seconds from the end of the forward pass until it is ready."""
    messages: list[float]
    """Bytes of each call in a step."""
    points: list[tuple[float, float]]
    """Bytes and seconds of the group's all-reduce without training, with rising bytes."""
    residuals: list[float]
    """Seconds of computing in each step of each rank, minus the mean of that rank."""
    fusion_bytes: float = 0.0
    """Most bytes that the library fuses into one message; 0 if it does not fuse."""
    bits_per_second: int | None = None
    """Rate of the measured link; None if it is not known."""
    latency_seconds: float = 0.0
    """Latency of the measured link; 0 if it is not known."""

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
        """Return the form of the library's large all-reduces."""
        return next(form for form in FORMS["all_reduce"] if form.name == self.form)

    @property
    def ready(self) -> list[Gradient]:
        """Return the gradients, each ready by the end of the backward pass at the latest."""
        return [Gradient(nbytes, min(when, self.backward_seconds)) for nbytes, when in self.gradients]


def why_not(run: Run, arm: Arm) -> str:
    """Return the first reason why an arm cannot be predicted; empty if it can."""
    launches = run.of(arm)
    return next(_reasons(run, launches), "") if launches else "it has no launch"


def _reasons(run: Run, launches: list[Launch]) -> Iterator[str]:
    ranks = launches[0].ranks
    first, transport = ranks[0], ranks[0].attestation["group"]["transport"]
    if run.config.accumulate > 1:
        yield "the passes of --accumulate are not modelled"
    if len(ranks) < 2:  # noqa: PLR2004 -- one rank sends nothing
        yield "one rank sends nothing, so no network was measured"
    over_nccl = transport == "NCCL" and len(run.hosts) > 1
    if "TCP" not in transport and not over_nccl:
        yield f"its bytes travelled by {transport}, not between hosts"
    if any(host.slots > 1 for host in run.hosts) and len(run.hosts) > 1:
        yield "several ranks on a host share a link, which is not modelled"
    yield from _reasons_of_calls(first)
    if not all(LaunchFigures(launch).reference_seconds and _phases(launch.ranks[0]) for launch in launches):
        yield "its run timed no steps without synchronisation"
    if not first.gradients:
        yield "its run recorded no times of gradients, so measure it again"
    if is_oversubscribed(run) and _bound_by_latency(first):
        yield "its ranks waited for cores, so latency was not measured"


def _reasons_of_calls(rank: RankResult) -> Iterator[str]:
    group, replica = rank.attestation["group"], rank.attestation.get("replica", {})
    if not rank.message_bytes or replica.get("comm_hook", "none") != "none":
        yield "its calls are not an all-reduce of its gradients"
    if replica.get("mode") in OTHER_MODES:
        yield f"mode={replica['mode']} is not modelled"
    if len(rank.sweep) < 2:  # noqa: PLR2004 -- a curve takes two
        yield "its run has no sweep of message sizes"
    if not form_of(rank):
        yield f"the form of {group.get('library', 'its library')} is not known"


def _bound_by_latency(rank: RankResult) -> bool:
    curve = Curve(tuple((sweep.message_bytes, min(sweep.ns)) for sweep in rank.sweep))
    calls = [predict_call(curve, FORMS["all_reduce"][0], 2, size, Network(2)) for size in rank.message_bytes]
    return sum(call.latency for call in calls) > sum(call.wire for call in calls)


def library_of(rank: RankResult) -> str:
    """Return the name of the group's library, without its version."""
    attested = str(rank.attestation["group"].get("library", ""))
    return next((name for name in (*_FORMS, "Horovod") if attested.startswith(name)), attested)


def form_of(rank: RankResult) -> str:
    """Return the name of the form of the library's large all-reduces; empty if it is not known."""
    library = library_of(rank)
    if library == "Horovod":
        return "Rabenseifner" if rank.attestation["group"].get("controller") == "mpi" else "ring"
    return _FORMS.get(library, "")


def schedule_of(rank: RankResult) -> Schedule:
    """Return when the calls of a step run, by the strategy and the library that a rank attests."""
    replica = rank.attestation.get("replica", {})
    if replica.get("mode") == "optimizer":
        return "fused"
    # MPI makes progress only inside its calls, so nothing overlaps.
    overlaps = "bucket_bytes" in replica or replica.get("mode") == "overlap"
    return "overlap" if overlaps and library_of(rank) != "Open MPI" else "after"


def measure(run: Run, arm: Arm) -> list[Measured]:
    """Take from each launch of an arm what predictions need.

    The arm must be one for which `why_not` returns an empty string.
    """
    return [_measure(launch, run.network.rehearsed) for launch in run.of(arm)]


def _measure(launch: Launch, link: Link | None) -> Measured:
    first, figures = launch.ranks[0], LaunchFigures(launch)
    alone, shares = figures.reference_seconds or 0.0, _phase_shares(launch)
    sizes, seconds = zip(*sweep_points(launch.ranks, min), strict=True)
    return Measured(
        arm=launch.arm,
        ranks=len(launch.ranks),
        library=library_of(first),
        form=form_of(first),
        schedule=schedule_of(first),
        step_seconds=figures.step_seconds,
        forward_seconds=alone * shares["forward"],
        backward_seconds=alone * shares["backward"],
        optimizer_seconds=alone * (1 - shares["forward"] - shares["backward"]),
        gradients=_gradients(launch),
        messages=[float(size) for size in first.message_bytes],
        # Other programs only make calls slower. No point is faster than one of a smaller message.
        points=list(zip(sizes, accumulate(seconds, max), strict=True)),
        residuals=_residuals(launch),
        fusion_bytes=float(first.attestation["group"].get("fusion_bytes", 0)),
        bits_per_second=link.bits_per_second if link else None,
        latency_seconds=link.latency_seconds if link else 0.0,
    )


def _phases(rank: RankResult) -> dict[str, list[int]]:
    blocks = [block.phases for block in rank.blocks if block.mode == "reference" and block.phases]
    return blocks[0] if blocks and "forward" in blocks[0] else {}


def _phase_shares(launch: Launch) -> dict[str, float]:
    totals = {
        name: sum(statistics.median(_phases(rank)[name]) for rank in launch.ranks)
        for name in _phases(launch.ranks[0])
    }
    return {name: total / sum(totals.values()) for name, total in totals.items()}


def _residuals(launch: Launch) -> list[float]:
    found = []
    for rank in launch.ranks:
        steps = [sum(times) / 1e9 for times in zip(*_phases(rank).values(), strict=True)]
        found += [seconds - statistics.fmean(steps) for seconds in steps]
    return found


def _gradients(launch: Launch) -> list[tuple[float, float]]:
    """Return the bytes of each gradient, with the mean over ranks of the median seconds until it is ready."""
    return [
        (its[0].gradient_bytes, statistics.fmean(statistics.median(one.ready_ns) for one in its) / 1e9)
        for its in zip(*(rank.gradients for rank in launch.ranks), strict=True)
    ]
