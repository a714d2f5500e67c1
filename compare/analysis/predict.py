"""Predict step times with other hosts, links and buckets.

step = forward + max(backward, end of the last call) + optimizer + rest + skew. The rest is the time that the
measured step took beyond its own timeline: copies, and what communication takes from computing. The rest does
not grow with hosts or links.

``python -m tests.bench.predictions`` measures the errors of predictions. A cell is one launch that was
predicted and measured; docs/predictions.md shows every cell. Each error is the larger of two: the end of
Student's interval for one more such cell, and the largest error of the cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

from compare.analysis.cost_model import (
    Call,
    Network,
    Schedule,
    ddp_buckets,
    expected_maximum,
    lay_out,
    predict_call,
)
from compare.analysis.estimate import Estimate
from compare.analysis.measured import Measured, measure, why_not
from compare.errors import OutputError
from compare.schema.hosts import Link
from compare.schema.results import Run

Limit: TypeAlias = Literal["computing", "bandwidth", "latency", "skew", "copies"]
GOODPUT = {"ring": 0.94, "Rabenseifner": 0.64}
"""Share of a link's rate that the lab's all-reduces reached, by form.

If the rate of the measured link is not known, it is estimated with this share.
"""
PAYS = 0.5
"""Smallest growth of throughput that pays, as a share of the growth in hosts."""
Regime: TypeAlias = Literal["wire", "other"]
"""``wire``: bytes take half of the step or more, and 10 ms or more for each call."""

_WIRE_SECONDS = 0.010
_WIRE_SHARE = 0.5
VALIDATED_HOSTS = 4
"""Largest number of hosts in a cell."""
_VALIDATED_LAUNCHES = 2
"""Number of launches from which every cell was predicted."""
VALIDATED_RATES = (0.5, 2.5)
"""Minimum and maximum ratio of the predicted rate to the measured rate."""

_ERRORS: dict[tuple[str, Schedule], float] = {
    ("torch.distributed gloo", "after"): 0.10,
    ("torch.distributed gloo", "overlap"): 0.11,
    ("Open MPI", "after"): 0.60,
    ("Horovod", "fused"): 0.49,
}
_LARGEST_ERROR = max(_ERRORS.values())


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts, link and buckets of a prediction; None keeps what was measured."""

    hosts: int
    link: Link | None = None
    bucket_cap_mb: float | None = None
    """Cap of DDP's buckets in MiB."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted step."""

    seconds: float
    parts: dict[Limit, float]
    """Seconds of each part.

    - *computing*: the step without synchronisation
    - *latency* and *bandwidth*: the part of all calls that does not depend on their bytes, and the rest
    - *skew*: the expected wait for the slowest rank
    - *copies*: the time of the measured step beyond its own timeline, as it applies to this step
    """
    calls: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction of one arm with one number of hosts."""

    arm: str
    """Label of the arm, with the cap of its buckets if that was changed."""
    hosts: int
    step_seconds: Estimate
    """Geometric mean over the measured launches; its interval is never narrower than ``error``."""
    sync_share: float
    """Share of the step that is sync cost: 1 minus the efficiency."""
    efficiency: float
    """Step time without synchronisation over the predicted step time."""
    limit: Limit
    """Largest part of the predicted step."""
    error: float
    """Relative error of validated cells like this one; the largest of all cells if none is like it."""
    regime: Regime
    """``wire``: bytes dominate the step, as in the validated cells; ``other``: no cell is like that."""
    times_hosts: float
    """Predicted number of hosts over the measured number of ranks."""
    times_rate: float
    """Predicted rate of the link over the measured rate; 1 if the link is the measured one."""
    beyond_validation: bool
    """Whether the arm, the hosts, the link or the measured run is unlike every validated cell."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """All predictions from one run."""

    measured_hosts: int
    """Number of ranks of the measured run, which all count as hosts."""
    predictions: list[Prediction]
    refused: dict[str, str]
    """Why arms cannot be predicted, by label."""
    knees: dict[str, int | None]
    """By arm: the last number of hosts before an addition that does not pay; None if all additions pay."""
    worth_measuring: dict[int, str]
    """Why a measurement would settle a question, by number of hosts."""
    assumed_goodput: bool
    """Whether the measured rate is not known, so that it was estimated with ``GOODPUT``."""
    added_latency: bool
    """Whether the link's latency was added to a measured latency that is not known."""
    steps: int
    """Number of residuals that were resampled: one for each step of each rank in one launch."""


def forecast(
    run: Run, hosts: Sequence[int], link: Link | None = None, bucket_caps: Sequence[float] = ()
) -> Forecast:
    """Predict every arm that synchronises, with every number of hosts.

    Args:
        run: the measured run.
        hosts: numbers of hosts, with one rank on each.
        link: the link of the predicted hosts; None keeps the measured one.
        bucket_caps: further caps of DDP's buckets in MiB, which apply to the arm ``ddp`` alone.

    Raises:
        OutputError: no arm of the run can be predicted.
    """
    measured, refused = {}, {}
    for arm in run.config.synchronising:
        if reason := why_not(run, arm):
            refused[arm.label] = reason
        elif len(run.hosts) == 1 and link is None:
            refused[arm.label] = "one host measured no network, so describe one with --link"
        else:
            measured[arm.label] = measure(run, arm)
    if not measured:
        raise OutputError(
            "Nothing can be predicted from this run.",
            found="; ".join(f"{arm}: {reason}" for arm, reason in refused.items())
            or "It has no arm that synchronises.",
            remedy="Measure again without that, on two hosts or more: compare run -H HOST,HOST --backend "
            "ddp,manual,mpi.",
        )
    recorded = run.network.rehearsed
    assumed_goodput = link is not None and not (recorded and recorded.bits_per_second is not None)
    # Every cell was predicted from several hosts, whose rate was known.
    like_cells = len(run.hosts) > 1 and not assumed_goodput
    predictions = []
    for label, launches in measured.items():
        for cap in [None, *bucket_caps] if label == "ddp" else [None]:
            name = label if cap is None else f"{label} @ {cap:g} MiB"
            targets = [Target(hosts=count, link=link, bucket_cap_mb=cap) for count in hosts]
            predictions += [_predict(name, launches, target, like_cells=like_cells) for target in targets]
    return Forecast(
        measured_hosts=run.config.ranks,
        predictions=predictions,
        refused=refused,
        knees=_knees(predictions),
        worth_measuring=_worth_measuring(predictions, run.config.ranks),
        assumed_goodput=assumed_goodput,
        added_latency=bool(link and link.latency_seconds and not recorded),
        steps=len(next(iter(measured.values()))[0].residuals),
    )


def with_measured_link(run: Run, link: Link) -> Run:
    """Return a copy of the run that records ``link`` as the one it was measured on."""
    return msgspec.structs.replace(run, network=msgspec.structs.replace(run.network, rehearsed=link))


def predict_step(measured: Measured, target: Target) -> Step:
    """Predict one step of an arm from one measured launch.

    The step is never shorter than its computing time.
    """
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
        parts={
            "computing": measured.compute_seconds,
            "bandwidth": calls.wire,
            "latency": calls.latency,
            "skew": skew,
            "copies": rest,
        },
        calls=len(messages),
    )


def _rest(measured: Measured, own: float, end: float) -> float:
    """Return the seconds that the predicted step takes beyond its timeline.

    The timeline of the measured step takes ``own`` seconds, and that of the predicted step takes ``end``. The
    rest is negative if calls took less time in the measured step than without training. A negative rest is
    scaled down with the time that calls add to the step, and never scaled up.
    """
    rest, added = measured.step_seconds - own, own - measured.compute_seconds
    return rest * min(1.0, (end - measured.compute_seconds) / added) if rest < 0 < added else rest


def network_of(measured: Measured, target: Target) -> Network:
    """Return how the target's network differs from the measured one.

    Without a link, or with one that has no rate, only the number of hosts differs.
    """
    if target.link is None or target.link.bits_per_second is None:
        return Network(target.hosts)
    rate = measured.bits_per_second or _estimated_rate(measured)
    added = target.link.latency_seconds - measured.latency_seconds
    return Network(target.hosts, rate / target.link.bits_per_second, added)


def _estimated_rate(measured: Measured) -> float:
    """Estimate the bits per second of the measured link from the largest message and ``GOODPUT``."""
    nbytes, seconds = measured.points[-1]
    traffic = measured.all_reduce.sent(measured.ranks)
    return 8 * nbytes * traffic / (seconds - measured.curve.latency or seconds) / GOODPUT[measured.form]


def _timeline(measured: Measured, network: Network, messages: Sequence[float]) -> tuple[float, Call]:
    """Return a step's seconds without rest and skew, and the time of all its calls together."""

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
    wire = middle.parts["bandwidth"]
    dominates = wire >= _WIRE_SECONDS * middle.calls and wire >= _WIRE_SHARE * found.mean
    regime: Regime = "wire" if dominates else "other"
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
        limit=max(middle.parts, key=middle.parts.__getitem__),
        error=error,
        regime=regime,
        times_hosts=times_hosts,
        times_rate=times_rate,
        beyond_validation=beyond,
    )


def _is_beyond(launches: Sequence[Measured], target: Target, times_rate: float) -> bool:
    """Return whether the target or the measured run is outside the range of the validated cells."""
    first = launches[0]
    slowest, fastest = VALIDATED_RATES
    link = target.link or Link()
    return (
        len(launches) < _VALIDATED_LAUNCHES
        or target.hosts > VALIDATED_HOSTS
        or not slowest <= round(times_rate, 2) <= fastest
        or max(first.latency_seconds, link.latency_seconds) > 0
        or (first.library, first.schedule) not in _ERRORS
    )


def validated_error(library: str, schedule: Schedule, *, like_cells: bool = True) -> float:
    """Return the relative error of a prediction, which is the least that its interval allows for.

    The error is the larger of the predicted and the measured time over the smaller one, minus one. A
    prediction that is like no cell has the largest error of all kinds of cells.
    """
    return _ERRORS.get((library, schedule), _LARGEST_ERROR) if like_cells else _LARGEST_ERROR


def _widened(estimate: Estimate, error: float) -> Estimate:
    """Return an estimate whose interval includes the error of validation, added as an independent part."""
    least = math.log1p(error)
    low = math.hypot(math.log(estimate.mean / estimate.low), least)
    high = math.hypot(math.log(estimate.high / estimate.mean), least)
    return msgspec.structs.replace(
        estimate, low=estimate.mean * math.exp(-low), high=estimate.mean * math.exp(high)
    )


def _knees(predictions: Sequence[Prediction]) -> dict[str, int | None]:
    """Find for each arm the last number of hosts before an addition that does not pay."""
    of_arms: dict[str, list[Prediction]] = {}
    for prediction in sorted(predictions, key=lambda prediction: prediction.hosts):
        of_arms.setdefault(prediction.arm, []).append(prediction)
    return {
        arm: next((before.hosts for before, after in pairwise(own) if not _pays(before, after)), None)
        for arm, own in of_arms.items()
    }


def _pays(before: Prediction, after: Prediction) -> bool:
    growth = after.hosts / before.hosts
    throughput = growth * before.step_seconds.mean / after.step_seconds.mean
    return throughput - 1 >= PAYS * (growth - 1)


def _worth_measuring(predictions: Sequence[Prediction], measured: int) -> dict[int, str]:
    """Return the numbers of hosts whose measurement would settle a question, each with the reason."""
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
