"""Predict step times with other hosts, links and buckets.

step = forward + max(backward, end of the last call) + optimizer + rest + skew. The rest is what the measured
step took beyond its own timeline: copies, and what communication takes from computing. It grows with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

from compare.analysis.cost_model import Call, Network, expected_maximum, predict_call
from compare.analysis.estimate import Estimate
from compare.analysis.measured import Measured, measure, why_not
from compare.analysis.timeline import ddp_buckets, lay_out
from compare.analysis.validated import (
    VALIDATED_HOSTS,
    VALIDATED_LAUNCHES,
    VALIDATED_RATES,
    Regime,
    has_cells,
    regime_of,
    validated_error,
)
from compare.errors import OutputError
from compare.schema.arms import Arm
from compare.schema.link import Link
from compare.schema.results import Run

Limit: TypeAlias = Literal["computing", "bandwidth", "latency", "skew", "copies"]
GOODPUT = {"ring": 0.94, "Rabenseifner": 0.64}
"""Share of a link's rate that the lab's all-reduces reached, by form.

It stands in where the rate of the measured link is not known.
"""
PAYS = 0.5
"""Share of the growth in hosts that throughput must gain."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a prediction is for; None keeps what was measured."""

    hosts: int
    link: Link | None = None
    bucket_cap_mb: float | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted step and its parts, in seconds."""

    seconds: float
    compute_seconds: float
    latency_seconds: float
    wire_seconds: float
    skew_seconds: float
    rest_seconds: float
    calls: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One arm with one number of hosts."""

    arm: str
    hosts: int
    step_seconds: Estimate
    """Its interval is never narrower than ``error``."""
    sync_share: float
    efficiency: float
    """Step time without synchronisation over this one."""
    limit: Limit
    error: float
    """Relative error of cells like it; the largest without any."""
    regime: Regime
    """``other``: no such cells were validated."""
    times_hosts: float
    """Hosts over the measured ones."""
    times_rate: float
    """Rate over the measured one; 1 without another."""
    beyond_validation: bool
    """No cell is like its arm, hosts, rate, or run."""


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where adding hosts stops paying."""

    arm: str
    hosts: int | None
    """The last count that paid; None if all did."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """All predictions of a run."""

    measured_hosts: int
    predictions: list[Prediction]
    refused: dict[str, str]
    """Reasons of the arms that cannot be predicted."""
    knees: list[Knee]
    worth_measuring: dict[int, str]
    """Counts of hosts, each with the reason."""
    assumed_goodput: bool
    """The measured rate is not known, so ``GOODPUT`` is assumed."""
    added_latency: bool
    """The link's latency is added to a measured one that is unknown."""
    steps: int
    """Steps whose residuals were resampled."""


def forecast(
    run: Run, hosts: Sequence[int], link: Link | None = None, bucket_caps: Sequence[float] = ()
) -> Forecast:
    """Predict every arm with every number of hosts.

    Raises:
        OutputError: nothing was measured that could tell.
    """
    refused = {arm.label: reason for arm in _communicating(run) if (reason := _reason(run, arm, link))}
    arms = [arm for arm in _communicating(run) if arm.label not in refused]
    if not arms:
        raise OutputError(
            "Nothing can be predicted from this run.",
            found="; ".join(f"{arm}: {reason}" for arm, reason in refused.items()) or "It has no such arm.",
            remedy="Run two hosts or more: compare run -H HOST,HOST --backend ddp,manual,mpi.",
        )
    predictions = []
    # Every cell was predicted from several hosts, whose rate was known.
    like_cells = len(run.hosts) > 1 and not _assumes_goodput(run, link)
    for arm in arms:
        launches = measure(run, arm)
        caps = [None, *bucket_caps] if arm.label == "ddp" else [None]
        for cap in caps:
            name = arm.label if cap is None else f"{arm.label} @ {cap:g} MiB"
            targets = [Target(hosts=count, link=link, bucket_cap_mb=cap) for count in hosts]
            predictions += [_predict(name, launches, target, like_cells=like_cells) for target in targets]
    launches = [launch for arm in arms for launch in measure(run, arm)]
    return Forecast(
        measured_hosts=run.config.ranks,
        predictions=predictions,
        refused=refused,
        knees=_knees(predictions),
        worth_measuring=_worth_measuring(predictions, run.config.ranks),
        assumed_goodput=_assumes_goodput(run, link),
        added_latency=bool(link and link.latency_seconds and not run.network.rehearsed),
        steps=len(launches[0].residuals),
    )


def with_measured_link(run: Run, link: Link) -> Run:
    """Return the run with the link that it was measured on."""
    return msgspec.structs.replace(run, network=msgspec.structs.replace(run.network, rehearsed=link))


def _assumes_goodput(run: Run, link: Link | None) -> bool:
    known = run.network.rehearsed is not None and run.network.rehearsed.bits_per_second is not None
    return link is not None and not known


def _communicating(run: Run) -> list[Arm]:
    return run.config.synchronising


def _reason(run: Run, arm: Arm, link: Link | None) -> str:
    if reason := why_not(run, arm):
        return reason
    if len(run.hosts) == 1 and link is None:
        return "one host measured no network: give one with --link"
    return ""


def predict_step(measured: Measured, target: Target) -> Step:
    """Predict one step from one launch."""
    own = _timeline(measured, Network(measured.ranks), measured.messages)
    messages = measured.messages
    if target.bucket_cap_mb is not None:
        messages = ddp_buckets(measured.ready, target.bucket_cap_mb)
    end, calls = _timeline(measured, network_of(measured, target), messages)
    rest = _rest(measured, own[0], end)
    skew = expected_maximum(measured.residuals, target.hosts)
    grown = skew - expected_maximum(measured.residuals, measured.ranks)
    return Step(
        seconds=max(measured.compute_seconds, end + rest + grown),
        compute_seconds=measured.compute_seconds,
        latency_seconds=calls.latency,
        wire_seconds=calls.wire,
        skew_seconds=skew,
        rest_seconds=rest,
        calls=len(messages),
    )


def _rest(measured: Measured, own: float, end: float) -> float:
    """Return what the timeline misses of a step.

    The timeline ends after ``end``, and after ``own`` for the measured step. Calls that took less time in the
    step than alone make the rest negative. It shrinks with what calls add to the step, and never grows.
    """
    rest, added = measured.step_seconds - own, own - measured.compute_seconds
    return rest * min(1.0, (end - measured.compute_seconds) / added) if rest < 0 < added else rest


def predict_all_reduce(measured: Measured, nbytes: float, target: Target) -> Call:
    """Predict one all-reduce alone."""
    network = network_of(measured, target)
    return predict_call(measured.curve, measured.all_reduce, measured.ranks, nbytes, network)


def network_of(measured: Measured, target: Target) -> Network:
    """Return how the target's network differs from the measured one."""
    if target.link is None or target.link.bits_per_second is None:
        return Network(target.hosts)
    rate = measured.bits_per_second or _estimated_rate(measured)
    added = target.link.latency_seconds - measured.latency_seconds
    return Network(target.hosts, rate / target.link.bits_per_second, added)


def _estimated_rate(measured: Measured) -> float:
    """Estimate the link's bits per second from the largest message."""
    nbytes, seconds = measured.points[-1]
    traffic = measured.all_reduce.sent(measured.ranks)
    return 8 * nbytes * traffic / (seconds - measured.curve.latency or seconds) / GOODPUT[measured.form]


def _timeline(measured: Measured, network: Network, messages: Sequence[float]) -> tuple[float, Call]:
    """Return a step's seconds without rest and skew, and its calls."""

    def call(nbytes: float) -> Call:
        return predict_call(measured.curve, measured.all_reduce, measured.ranks, nbytes, network)

    end = lay_out(
        measured.schedule,
        measured.ready,
        messages,
        measured.backward_seconds,
        call,
        fusion_bytes=measured.fusion_bytes,
    )
    return measured.forward_seconds + end.seconds + measured.optimizer_seconds, end.calls


def _predict(name: str, launches: Sequence[Measured], target: Target, *, like_cells: bool) -> Prediction:
    first = launches[0]
    steps = sorted((predict_step(launch, target) for launch in launches), key=lambda step: step.seconds)
    middle = steps[len(steps) // 2]
    times_rate = 1 / network_of(first, target).slowdown
    times_hosts = target.hosts / first.ranks
    found = Estimate.geometric(step.seconds for step in steps)
    regime = regime_of(middle.wire_seconds, middle.calls, found.mean)
    beyond = not like_cells or _is_beyond(launches, target, times_rate)
    error = validated_error(first.library, first.schedule, like_cells=not beyond and regime == "wire")
    seconds = _widened(found, error)
    compute = Estimate.geometric(launch.compute_seconds for launch in launches).mean
    efficiency = compute / seconds.mean
    return Prediction(
        arm=name,
        hosts=target.hosts,
        step_seconds=seconds,
        sync_share=1 - efficiency,
        efficiency=efficiency,
        limit=_limit(middle),
        error=error,
        regime=regime,
        times_hosts=times_hosts,
        times_rate=times_rate,
        beyond_validation=beyond,
    )


def _is_beyond(launches: Sequence[Measured], target: Target, times_rate: float) -> bool:
    """Return whether no cell has such an arm, hosts, link and rounds."""
    first = launches[0]
    slowest, fastest = VALIDATED_RATES
    link = target.link or Link()
    return (
        len(launches) < VALIDATED_LAUNCHES
        or target.hosts > VALIDATED_HOSTS
        or not slowest <= round(times_rate, 2) <= fastest
        or max(first.latency_seconds, link.latency_seconds) > 0
        or not has_cells(first.library, first.schedule)
    )


def _widened(estimate: Estimate, error: float) -> Estimate:
    """Add the error of validation to an interval, as independent parts."""
    least = math.log1p(error)
    low = math.hypot(math.log(estimate.mean / estimate.low), least)
    high = math.hypot(math.log(estimate.high / estimate.mean), least)
    return msgspec.structs.replace(
        estimate, low=estimate.mean * math.exp(-low), high=estimate.mean * math.exp(high)
    )


def _limit(step: Step) -> Limit:
    parts: dict[Limit, float] = {
        "computing": step.compute_seconds,
        "bandwidth": step.wire_seconds,
        "latency": step.latency_seconds,
        "skew": step.skew_seconds,
        "copies": step.rest_seconds,
    }
    return max(parts, key=parts.__getitem__)


def _knees(predictions: Sequence[Prediction]) -> list[Knee]:
    """Find each arm's last count before hosts pay too little."""
    knees = []
    for arm in dict.fromkeys(prediction.arm for prediction in predictions):
        own = sorted((p for p in predictions if p.arm == arm), key=lambda p: p.hosts)
        knee = next(
            (before.hosts for before, after in pairwise(own) if not _pays(before, after)),
            None,
        )
        knees.append(Knee(arm=arm, hosts=knee))
    return knees


def _pays(before: Prediction, after: Prediction) -> bool:
    growth = after.hosts / before.hosts
    throughput = growth * before.step_seconds.mean / after.step_seconds.mean
    return throughput - 1 >= PAYS * (growth - 1)


def _worth_measuring(predictions: Sequence[Prediction], measured: int) -> dict[int, str]:
    """Name the counts whose measurement would settle a question."""
    worth = {}
    for hosts in sorted({prediction.hosts for prediction in predictions} - {measured}):
        first, *others = sorted(
            (p for p in predictions if p.hosts == hosts), key=lambda p: p.step_seconds.mean
        )
        open_ = [p.arm for p in others if p.step_seconds.low < first.step_seconds.high]
        if open_:
            worth[hosts] = f"{', '.join([first.arm, *open_])} are within each other's intervals"
    if measured == 2:  # noqa: PLR2004 -- among two, all forms send the same bytes
        worth[3] = "it shows the form of each all-reduce, which two hosts cannot"
    return worth
