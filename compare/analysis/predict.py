"""Predict step times with other hosts, links and buckets, and compare them with those of another run.

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

from compare.analysis.cost_model import Schedule
from compare.analysis.estimate import Estimate
from compare.analysis.figures import Figures
from compare.analysis.measured import Limit, Measured, Target, measure, network_of, predict_step, why_not
from compare.errors import OutputError
from compare.schema.hosts import Link
from compare.schema.results import Run

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
_ALIKE = ("model", "batch_size_per_rank", "accumulate", "precision", "compile", "threads_per_rank")
"""Settings that must be equal in both runs, because no prediction takes them into account."""


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
            remedy="Measure arms that can be predicted, on two hosts or more, or describe the network with "
            "--link: compare run -H HOST,HOST --backend ddp,manual,mpi.",
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
    knees: dict[str, int | None] = {}
    for arm in dict.fromkeys(prediction.arm for prediction in predictions):
        own = sorted((one for one in predictions if one.arm == arm), key=lambda one: one.hosts)
        knees[arm] = next((before.hosts for before, after in pairwise(own) if not _pays(before, after)), None)
    return knees


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


# ---- against the measurements of another run ----


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted and the measured step time of one arm."""

    arm: str
    hosts: int
    predicted_seconds: Estimate
    measured_seconds: Estimate
    error: float
    """Predicted time over measured time, minus one."""
    covered: bool
    """Whether the measured mean lies in the interval of the prediction."""


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """Arms predicted from one run, and measured in another."""

    comparisons: list[Comparison]
    left_out: dict[str, str]
    """Why arms are not compared, by label."""
    same_network: bool
    """Whether ranks and link are those of the measured run, so that little is left to predict."""


def compare_with(run: Run, other: Run, link: Link | None = None) -> Against:
    """Predict the step times of ``other`` from ``run``, and compare them with the measured ones.

    ``link`` is the network of ``other``; the default is the link that ``other`` recorded as a rehearsal.

    Raises:
        OutputError: the settings of the runs differ, ``other`` has several ranks on a host, nothing can be
            predicted, or no predicted arm was measured in ``other``.
    """
    _require_alike(run, other)
    link = link or other.network.rehearsed
    made = forecast(run, [other.config.ranks], link)
    measured, predicted = Figures(other), [prediction.arm for prediction in made.predictions]
    missing = {arm.label for arm in other.config.synchronising} - {*predicted, *made.refused}
    found = [_compared(own, measured) for own in made.predictions if measured.of(own.arm)]
    if not found:
        raise OutputError(
            "The two runs have no arm in common that can be predicted.",
            found=f"{', '.join(predicted)} can be predicted.",
            remedy="Measure one of them in the other run.",
        )
    return Against(
        comparisons=found,
        left_out=made.refused
        | {arm: "the other run did not launch it" for arm in predicted if not measured.of(arm)}
        | dict.fromkeys(sorted(missing), "this run did not launch it"),
        same_network=other.config.ranks == run.config.ranks and link == run.network.rehearsed,
    )


def _compared(prediction: Prediction, measured: Figures) -> Comparison:
    took = Estimate.geometric(measured.step_seconds(prediction.arm).values())
    step = prediction.step_seconds
    return Comparison(
        arm=prediction.arm,
        hosts=prediction.hosts,
        predicted_seconds=step,
        measured_seconds=took,
        error=step.mean / took.mean - 1,
        covered=step.low <= took.mean <= step.high,
    )


def _require_alike(run: Run, other: Run) -> None:
    unlike = [
        f"{name} {getattr(run.config, name)} and {getattr(other.config, name)}"
        for name in _ALIKE
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
