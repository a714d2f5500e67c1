"""Predict step times with other hosts, links and buckets, and compare them with those of another run.

step = forward + max(backward, end of the last call) + optimizer + rest + skew. The rest is what the measured
step took beyond the other parts: copies, and what communication takes from computing. It does not grow with
hosts or links. The skew is the expected wait for the slowest rank.

``python -m tests.bench.predictions`` measures the errors of predictions. A cell is one launch that was both
predicted and measured; docs/predictions.md shows every cell. Each error is the larger of two: the end of
Student's interval for one more such cell, and the largest error of the cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

from compare.analysis.cost_model import Schedule
from compare.analysis.figures import Estimate, Figures
from compare.analysis.measured import (
    Limit,
    MeasuredLaunch,
    Target,
    measured_launches,
    network_of,
    predict_step,
    why_unpredictable,
)
from compare.errors import OutputError
from compare.schema.hosts import Link
from compare.schema.results import Run

PAYING_SHARE = 0.5
"""More hosts pay if throughput grows by at least this share of the growth in hosts."""
Regime: TypeAlias = Literal["wire", "other"]
"""What takes the time of a step.

``wire``: the bytes of the calls take half of the step or more, and 10 ms or more for each call.
"""

_WIRE_SECONDS = 0.010
_WIRE_SHARE = 0.5
VALIDATED_HOSTS = 4
"""Predictions were compared with measurements up to this number of hosts."""
_VALIDATED_LAUNCHES = 2
"""Number of launches from which every cell was predicted."""
VALIDATED_RATES = (0.5, 2.5)
"""In the cells, the predicted link was between these multiples of the measured link's rate."""

_ERROR_BY_KIND: dict[tuple[str, Schedule], float] = {
    ("torch.distributed gloo", "after"): 0.10,
    ("torch.distributed gloo", "overlap"): 0.11,
    ("Open MPI", "after"): 0.60,
    ("Horovod", "fused"): 0.49,
}
_LARGEST_ERROR = max(_ERROR_BY_KIND.values())
_EQUAL_SETTINGS = ("model", "batch_size_per_rank", "accumulate", "precision", "compile", "threads_per_rank")
"""Settings that must be equal in two compared runs, because predictions do not take them into account."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction of one arm with one number of hosts."""

    arm: str
    """Label of the arm, with the cap of its buckets if that was changed."""
    hosts: int
    step_seconds: Estimate
    """Geometric mean over the measured launches; its interval allows for ``error`` too."""
    sync_share: float
    """Share of the step that is sync cost: 1 minus the efficiency."""
    efficiency: float
    """Step time without synchronisation divided by the predicted step time."""
    limit: Limit
    """The part that takes most of the predicted step."""
    error: float
    """Relative error of earlier predictions of this kind; the largest of all kinds if no cell is like it."""
    regime: Regime
    """``wire``: bytes take most of the step, as in the cells; ``other``: no cell is like that."""
    times_hosts: float
    """Predicted number of hosts divided by the measured number of ranks."""
    times_rate: float
    """Predicted rate of the link divided by the measured rate; 1 if the link is the measured one."""
    beyond_validation: bool
    """Whether the arm, the hosts, the link or the measured run is unlike every cell."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """All predictions from one run."""

    measured_hosts: int
    """Number of ranks of the measured run, because each rank counts as one host."""
    predictions: list[Prediction]
    refused: dict[str, str]
    """For each arm that cannot be predicted, the reason, by label."""
    knees: dict[str, int | None]
    """By arm: the number of hosts after which the next number does not pay; None if every number pays."""
    worth_measuring: dict[int, str]
    """Numbers of hosts at which a measurement would settle a question, each with the reason."""
    assumed_goodput: bool
    """Whether the rate of the measured link is not known, so that it was estimated with ``GOODPUT``."""
    added_latency: bool
    """Whether the predicted link's latency was added in full, because the measured link's is not known."""
    steps: int
    """Number of residuals that were resampled: one for each step of each rank in one launch."""


def forecast(
    run: Run, hosts: Sequence[int], link: Link | None = None, bucket_caps: Sequence[float] = ()
) -> Forecast:
    """Predict the step time of every arm that synchronises, for each number of hosts.

    Args:
        run: the measured run.
        hosts: the numbers of hosts, with one rank on each.
        link: the link of the predicted hosts; None keeps the measured one.
        bucket_caps: further caps of DDP's buckets in MiB, which apply to the arm ``ddp`` alone.

    Raises:
        OutputError: no arm of the run can be predicted.
    """
    measured, refused = {}, {}
    for arm in run.config.synchronising:
        if reason := why_unpredictable(run, arm):
            refused[arm.label] = reason
        elif len(run.hosts) == 1 and link is None:
            refused[arm.label] = "one host measured no network, so describe one with --link"
        else:
            measured[arm.label] = measured_launches(run, arm)
    if not measured:
        raise OutputError(
            "Nothing can be predicted from this run.",
            found="; ".join(f"{arm}: {reason}" for arm, reason in refused.items())
            or "It has no arm that synchronises.",
            remedy="For a run on one host, describe the network with --link. If that does not help, measure "
            "on two hosts, with one rank on each: ringside run -H HOST,HOST --backend ddp,manual,mpi",
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


def _predict(
    name: str, launches: Sequence[MeasuredLaunch], target: Target, *, like_cells: bool
) -> Prediction:
    first = launches[0]
    steps = sorted((predict_step(launch, target) for launch in launches), key=lambda step: step.seconds)
    middle = steps[len(steps) // 2]
    times_rate = 1 / network_of(first, target).slowdown
    times_hosts = target.hosts / first.ranks
    predicted = Estimate.geometric(step.seconds for step in steps)
    wire = middle.parts["bandwidth"]
    dominates = wire >= _WIRE_SECONDS * middle.calls and wire >= _WIRE_SHARE * predicted.mean
    regime: Regime = "wire" if dominates else "other"
    beyond = not like_cells or _is_beyond_validation(launches, target, times_rate)
    error = validated_error(first.library, first.schedule, like_cells=not beyond and regime == "wire")
    seconds = _widen(predicted, error)
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


def _is_beyond_validation(launches: Sequence[MeasuredLaunch], target: Target, times_rate: float) -> bool:
    """Return whether the target or the measured run is outside the range of the cells."""
    first = launches[0]
    slowest, fastest = VALIDATED_RATES
    link = target.link or Link()
    return (
        len(launches) < _VALIDATED_LAUNCHES
        or target.hosts > VALIDATED_HOSTS
        or not slowest <= round(times_rate, 2) <= fastest
        or max(first.latency_seconds, link.latency_seconds) > 0
        or (first.library, first.schedule) not in _ERROR_BY_KIND
    )


def validated_error(library: str, schedule: Schedule, *, like_cells: bool = True) -> float:
    """Return the relative error that the interval of a prediction must allow for.

    It is the larger of a predicted and a measured time divided by the smaller one, minus one. If
    ``like_cells`` is not set, or no cell has this library and schedule, it is the largest error of all kinds.
    """
    return _ERROR_BY_KIND.get((library, schedule), _LARGEST_ERROR) if like_cells else _LARGEST_ERROR


def _widen(estimate: Estimate, error: float) -> Estimate:
    """Return the estimate with an interval that allows for the relative error too, as an independent part."""
    least = math.log1p(error)
    low = math.hypot(math.log(estimate.mean / estimate.low), least)
    high = math.hypot(math.log(estimate.high / estimate.mean), least)
    return msgspec.structs.replace(
        estimate, low=estimate.mean * math.exp(-low), high=estimate.mean * math.exp(high)
    )


def _knees(predictions: Sequence[Prediction]) -> dict[str, int | None]:
    """Return, by arm, the number of hosts after which the next number does not pay; None if all pay."""
    knees: dict[str, int | None] = {}
    for arm in dict.fromkeys(prediction.arm for prediction in predictions):
        of_arm = sorted((one for one in predictions if one.arm == arm), key=lambda one: one.hosts)
        steps = pairwise(of_arm)
        knees[arm] = next((before.hosts for before, after in steps if not _pays(before, after)), None)
    return knees


def _pays(before: Prediction, after: Prediction) -> bool:
    growth = after.hosts / before.hosts
    throughput = growth * before.step_seconds.mean / after.step_seconds.mean
    return throughput - 1 >= PAYING_SHARE * (growth - 1)


def _worth_measuring(predictions: Sequence[Prediction], measured: int) -> dict[int, str]:
    """Return the numbers of hosts at which a measurement would settle a question, each with the reason."""
    worth = {}
    for hosts in sorted({prediction.hosts for prediction in predictions} - {measured}):
        first, *others = sorted(
            (p for p in predictions if p.hosts == hosts), key=lambda p: p.step_seconds.mean
        )
        close = [p.arm for p in others if p.step_seconds.low < first.step_seconds.high]
        if close:
            worth[hosts] = f"{', '.join([first.arm, *close])} are within each other's intervals"
    if measured == 2:  # noqa: PLR2004 -- among two, all forms send the same bytes
        worth[3] = "it shows the algorithm of each all-reduce, which two hosts cannot"
    return worth


# ---- against the measurements of another run ----


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted and the measured step time of one arm."""

    arm: str
    hosts: int
    predicted_seconds: Estimate
    measured_seconds: Estimate
    error: float
    """Predicted step time divided by the measured one, minus one."""
    covered: bool
    """Whether the measured mean lies in the interval of the prediction."""


class ComparedPredictions(msgspec.Struct, frozen=True, kw_only=True):
    """The step times that are predicted from one run, compared with those measured in another."""

    comparisons: list[Comparison]
    left_out: dict[str, str]
    """For each arm that is not compared, the reason, by label."""
    same_network: bool
    """Whether both runs have the same number of ranks and the same link, so that little is predicted."""


def compare_with(run: Run, other: Run, link: Link | None = None) -> ComparedPredictions:
    """Predict the step times of ``other`` from ``run``, and compare them with the measured ones.

    ``link`` is the link between the hosts of ``other``; the default is the one that it recorded as a
    rehearsal.

    Raises:
        OutputError: the settings of the runs differ, ``other`` has several ranks on a host, nothing can be
            predicted, or no predicted arm was measured in ``other``.
    """
    _require_alike(run, other)
    link = link or other.network.rehearsed
    expected = forecast(run, [other.config.ranks], link)
    measured, predicted = Figures(other), [prediction.arm for prediction in expected.predictions]
    missing = {arm.label for arm in other.config.synchronising} - {*predicted, *expected.refused}
    comparisons = [_compare_arm(one, measured) for one in expected.predictions if measured.of(one.arm)]
    if not comparisons:
        raise OutputError(
            "The two runs have no arm in common that can be predicted.",
            found=f"From the first run, {', '.join(predicted)} can be predicted.",
            remedy=f"Repeat the other run with --backend {predicted[0]}.",
        )
    return ComparedPredictions(
        comparisons=comparisons,
        left_out=expected.refused
        | {arm: "the other run did not launch it" for arm in predicted if not measured.of(arm)}
        | dict.fromkeys(sorted(missing), "this run did not launch it"),
        same_network=other.config.ranks == run.config.ranks and link == run.network.rehearsed,
    )


def _compare_arm(prediction: Prediction, measured: Figures) -> Comparison:
    observed = Estimate.geometric(measured.step_seconds(prediction.arm).values())
    step = prediction.step_seconds
    return Comparison(
        arm=prediction.arm,
        hosts=prediction.hosts,
        predicted_seconds=step,
        measured_seconds=observed,
        error=step.mean / observed.mean - 1,
        covered=step.low <= observed.mean <= step.high,
    )


def _require_alike(run: Run, other: Run) -> None:
    unlike = [
        f"{name} {getattr(run.config, name)} and {getattr(other.config, name)}"
        for name in _EQUAL_SETTINGS
        if getattr(run.config, name) != getattr(other.config, name)
    ]
    found = [f"They differ: {'; '.join(unlike)}."] if unlike else []
    if any(host.slots > 1 for host in other.hosts):
        found.append("The other run has several ranks on a host, which predictions do not model.")
    if found:
        raise OutputError(
            "The two runs cannot be compared by a prediction.",
            found=" ".join(found),
            remedy="Measure both with the same flags, and with one rank on each host.",
        )
