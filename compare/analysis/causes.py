"""Why synchronising costs what it costs: causes, each with its measured evidence. Pure, like ``stats.py``.

A cause is only named where it is beyond noise: its interval over launches lies above zero, and it makes
up ``MATTERS`` of a step at least. With fewer than ``FEWEST_ROUNDS`` there is no interval that says anything,
and only what needs none is said.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from compare.analysis.budget import fullest_host
from compare.analysis.cost_model import split_collectives
from compare.analysis.estimate import Estimate
from compare.analysis.step_times import collective_seconds, has_reference, rank_seconds, step_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from compare.analysis.summary import ArmSummary, Summary
    from compare.schema.arms import Arm
    from compare.schema.results import Launch, Run

Key = Literal[
    "oversubscription", "little_compute", "latency", "bandwidth", "background", "straggler", "transport"
]

MATTERS = 0.05
"""Share of a step from which a cause is worth a sentence: somewhat above what is called equivalent."""
DOMINATES = 2 / 3
"""Share of the collectives' time from which a part explains it: twice the other part."""
FEWEST_ROUNDS = 3
"""Launches of an arm from which there is an interval: the range of two holds what is true one time in two."""
ALPHA = 0.05
"""How often a straggler may be named in an arm whose ranks are even."""
_HALF = 0.5


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, where it was found."""

    key: Key
    arm: str
    """Label of the arm it was found in; empty where it concerns the whole run."""
    evidence: dict[str, Any]
    """The figures behind it, in seconds, bytes and bytes a second."""


def find_causes(run: Run, summary: Summary) -> list[Cause]:
    """Name the causes of what synchronising costs.

    Where ranks share cores, nothing else is said: latency, background tax and stragglers would all
    be ranks waiting for a core, and a library would be blamed for it.
    """
    if summary.oversubscribed:
        return [_oversubscription(run)]
    found = [reason for arm, own in _synchronising(run, summary) for reason in _of_arm(run, arm, own)]
    return [*found, *_transports(run, summary)]


def _of_arm(run: Run, arm: Arm, own: ArmSummary) -> Iterator[Cause]:
    launches = run.of(arm)
    if _costs(own) and run.config.ranks > 1:  # with one rank nothing travels
        yield from _little_compute(launches, own)
        yield from _growth(launches, own)
    yield from _background(own)
    yield from _straggler(launches, own)


def _synchronising(run: Run, summary: Summary) -> Iterator[tuple[Arm, ArmSummary]]:
    of = {own.arm: own for own in summary.arms}
    yield from ((arm, of[arm.label]) for arm in run.config.arms if arm.synchronises and arm.label in of)


# ---- what is beyond noise ----


def _shows(estimate: Estimate | None, whole: float) -> bool:
    """Whether a cost, in seconds a step, is beyond noise, and worth a sentence as a part of the whole."""
    if estimate is None or estimate.n < FEWEST_ROUNDS:
        return False
    return estimate.low > 0 and estimate.mean >= MATTERS * whole


def _costs(own: ArmSummary) -> bool:
    step = own.step_seconds.mean
    return _shows(own.detail.exposed_seconds, step) or _shows(own.sync_seconds, step)


def _collectives_matter(own: ArmSummary) -> bool:
    alone = own.detail.collective_seconds
    return alone is not None and alone.mean >= MATTERS * own.step_seconds.mean


# ---- the causes ----


def _oversubscription(run: Run) -> Cause:
    ranks, cores = fullest_host(run)
    evidence = {"ranks": ranks, "threads_per_rank": run.config.threads_per_rank, "cores": cores}
    return Cause(key="oversubscription", arm="", evidence=evidence)


def _little_compute(launches: Sequence[Launch], own: ArmSummary) -> Iterator[Cause]:
    """The collectives alone take longer than a whole step computes: not even perfect overlap hides them.

    By the logarithm of their ratio, as verdicts are: what disturbs times multiplies them.
    """
    pairs = [
        (seconds, step_seconds(launch, "reference"))
        for launch in launches
        if (seconds := collective_seconds(launch)) and has_reference(launch)
    ]
    if len(pairs) < FEWEST_ROUNDS:
        return
    if Estimate.of(math.log(alone / compute) for alone, compute in pairs).low > 0:
        evidence = {
            "compute_seconds": statistics.fmean(compute for _, compute in pairs),
            "collective_seconds": statistics.fmean(alone for alone, _ in pairs),
        }
        yield Cause(key="little_compute", arm=own.arm, evidence=evidence)


def _growth(launches: Sequence[Launch], own: ArmSummary) -> Iterator[Cause]:
    """Tell what a message costs whatever its size from what grows with its bytes."""
    parts = [parts for launch in launches if (parts := split_collectives(launch))]
    if len(parts) < FEWEST_ROUNDS:
        return
    share = Estimate.of(part.fixed_seconds / part.seconds for part in parts)
    if share.mean >= DOMINATES and share.low > _HALF:
        key: Key = "latency"
    elif share.mean <= 1 - DOMINATES and share.high < _HALF:
        key = "bandwidth"
    else:
        return
    seconds = statistics.fmean(part.seconds for part in parts)
    fixed = statistics.fmean(part.fixed_seconds for part in parts)
    if seconds < MATTERS * own.step_seconds.mean:
        return
    evidence = {
        "calls": len(own.detail.message_bytes),
        "message_bytes": sum(own.detail.message_bytes),
        "collective_seconds": seconds,
        "fixed_seconds": fixed,
        "growing_seconds": seconds - fixed,
    }
    yield Cause(key=key, arm=own.arm, evidence=evidence)


def _background(own: ArmSummary) -> Iterator[Cause]:
    tax, reference = own.detail.background_seconds, own.detail.reference_seconds
    if tax and reference and _shows(tax, own.step_seconds.mean):
        evidence = {"background_seconds": tax.mean, "reference_seconds": reference.mean}
        yield Cause(key="background", arm=own.arm, evidence=evidence)


def _straggler(launches: Sequence[Launch], own: ArmSummary) -> Iterator[Cause]:
    """One and the same rank computes longer in every launch.

    Any rank may come out as the slowest, and the largest of several noisy times is always above their mean:
    so it must be the same in every launch, and beyond noise at a level divided by the ranks (Bonferroni).
    """
    referred = [launch for launch in launches if has_reference(launch)]
    times = [[rank_seconds(result, "reference") for result in launch.ranks] for launch in referred]
    slowest = {ranks.index(max(ranks)) for ranks in times}
    if len(times) < FEWEST_ROUNDS or len(slowest) > 1:
        return
    rank = slowest.pop()
    excess = [ranks[rank] - statistics.fmean(ranks) for ranks in times]
    compute = statistics.fmean(statistics.fmean(ranks) for ranks in times)
    if _lower_end(excess, ALPHA / len(times[0])) > 0 and statistics.fmean(excess) >= MATTERS * compute:
        evidence = {
            "rank": rank,
            "host": referred[-1].ranks[rank].host,
            "excess_seconds": statistics.fmean(excess),
            "compute_seconds": statistics.fmean(ranks[rank] for ranks in times),
        }
        yield Cause(key="straggler", arm=own.arm, evidence=evidence)


def _lower_end(values: Sequence[float], alpha: float) -> float:
    """Return the lower end of Student's one-sided interval of the mean, at level 1 - ``alpha``."""
    from scipy.special import stdtrit  # the parent starts without it

    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - float(stdtrit(len(values) - 1, 1 - alpha)) * error


def _transports(run: Run, summary: Summary) -> Iterator[Cause]:
    """On one host, some arms speak TCP to themselves while another shares memory, and is faster for it.

    Both at moving bytes and in a whole step: a way of the bytes that delays nobody is no reason for a cost.
    """
    if len(run.hosts) > 1:
        return
    known = [
        (own, bandwidth)
        for _, own in _synchronising(run, summary)
        if (bandwidth := own.detail.algorithm_bandwidth) and bandwidth.n >= FEWEST_ROUNDS
    ]
    sharing = [pair for pair in known if pair[0].transport == "shared memory"]
    if not sharing:
        return
    other, reached = max(sharing, key=lambda pair: pair[1].mean)
    for own, bandwidth in known:
        slower = bandwidth.high < reached.low and own.step_seconds.mean > other.step_seconds.mean
        if "TCP over lo" in own.transport and slower and _costs(own) and _collectives_matter(own):
            evidence = {
                "transport": own.transport,
                "algorithm_bandwidth": bandwidth.mean,
                "other_arm": other.arm,
                "other_transport": other.transport,
                "other_algorithm_bandwidth": reached.mean,
            }
            yield Cause(key="transport", arm=own.arm, evidence=evidence)
