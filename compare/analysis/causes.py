"""Name the causes of the sync cost, each with its measured evidence.

The interval of a cause must lie above zero, and its mean must make up ``MATTERS`` of a step.
A sync cost below noise has no cause. Fewer than ``FEWEST_ROUNDS`` rounds have no useful interval, so such a
run can name no cause except oversubscription.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from compare.analysis.budget import fullest_host
from compare.analysis.cost_model import split_collectives
from compare.analysis.estimate import Estimate, t_interval
from compare.analysis.figures import Figures, LaunchFigures
from compare.analysis.summary import ArmSummary, Summary

Key = Literal[
    "oversubscription",
    "lone_rank",
    "little_compute",
    "latency",
    "bandwidth",
    "background",
    "straggler",
    "transport",
]

MATTERS = 0.05
"""A cause is reported if it takes at least this share of a step."""
DOMINATES = 2 / 3
"""One of two parts dominates from this share on, because it is then twice the other."""
FEWEST_ROUNDS = 3
"""Fewest launches that name a cause; the range of two values misses the mean half of the time."""
ALPHA = 0.05
"""Probability of naming a straggler although all ranks are equally fast."""
_HALF = 0.5


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a sync cost, with the arm that has it and the evidence."""

    key: Key
    arm: str
    """Label of the arm; empty for a cause of the whole run."""
    evidence: dict[str, Any]
    """Figures and names that prove it: seconds, bytes, or bytes per second, as each key says."""


_Found: TypeAlias = tuple[Key, dict[str, Any]]
"""Key and evidence of a cause of one arm."""


def find_causes(figures: Figures, summary: Summary) -> list[Cause]:
    """Return the causes of the sync cost of every arm, arm by arm; causes of the transport come last.

    An oversubscribed run has no other cause, because ranks that wait for a core would look like any of them.
    """
    run = figures.run
    if summary.oversubscribed:
        ranks, cores = fullest_host(run)
        evidence = {"ranks": ranks, "threads_per_rank": run.config.threads_per_rank, "cores": cores}
        return [Cause(key="oversubscription", arm="", evidence=evidence)]
    synchronising = {arm.label for arm in run.config.synchronising}
    arms = [own for own in summary.arms if own.arm in synchronising]
    found = [
        Cause(key=key, arm=own.arm, evidence=evidence)
        for own in arms
        for key, evidence in _of_arm(figures.common, own)
    ]
    # A run whose noise hides every difference shows no shorter step.
    explains_transports = len(run.hosts) == 1 and not summary.noise_hides_all
    return [*found, *(_transports(arms) if explains_transports else ())]


def _of_arm(figures: Figures, own: ArmSummary) -> Iterator[_Found]:
    if own.below_noise:
        return
    launches, detail = figures.of(own.arm), own.detail
    if _costs(own):
        if figures.run.config.ranks > 1:
            yield from _little_compute(launches)
            yield from _growth(launches, own)
        elif detail.exposed_seconds:
            yield "lone_rank", {"exposed_seconds": detail.exposed_seconds.mean}
    tax, reference = detail.background_seconds, detail.reference_seconds
    if tax and reference and _shows(tax, own.step_seconds.mean):
        yield "background", {"background_seconds": tax.mean, "reference_seconds": reference.mean}
    yield from _straggler(launches)


def _shows(estimate: Estimate | None, whole: float) -> bool:
    """Return whether a cost is beyond noise, and at least ``MATTERS`` of ``whole``."""
    if estimate is None or estimate.n < FEWEST_ROUNDS:
        return False
    return estimate.low > 0 and estimate.mean >= MATTERS * whole


def _costs(own: ArmSummary) -> bool:
    step = own.step_seconds.mean
    shown = _shows(own.detail.exposed_seconds, step) or _shows(own.sync_seconds, step)
    return shown and not own.below_noise


def _little_compute(launches: Sequence[LaunchFigures]) -> Iterator[_Found]:
    """Name an arm whose collectives without training take longer than a step's computation.

    Not even perfect overlap could hide such collectives.
    """
    pairs = [
        (launch.collective_seconds, launch.reference_seconds)
        for launch in launches
        if launch.collective_seconds and launch.reference_seconds
    ]
    if len(pairs) < FEWEST_ROUNDS:
        return
    if Estimate.geometric(alone / compute for alone, compute in pairs).low > 1:
        alone, compute = (statistics.geometric_mean(seconds) for seconds in zip(*pairs, strict=True))
        yield "little_compute", {"compute_seconds": compute, "collective_seconds": alone}


def _growth(launches: Sequence[LaunchFigures], own: ArmSummary) -> Iterator[_Found]:
    """Name latency or bandwidth, if one of them dominates the collectives' time."""
    parts = [parts for launch in launches if (parts := split_collectives(launch))]
    if len(parts) < FEWEST_ROUNDS:
        return
    share = Estimate.of(part.latency / part.seconds for part in parts)
    if share.mean >= DOMINATES and share.low > _HALF:
        key: Key = "latency"
    elif share.mean <= 1 - DOMINATES and share.high < _HALF:
        key = "bandwidth"
    else:
        return
    seconds = statistics.geometric_mean(part.seconds for part in parts)
    fixed = share.mean * seconds
    if seconds < MATTERS * own.step_seconds.mean:
        return
    evidence = {
        "calls": len(own.detail.message_bytes),
        "message_bytes": sum(own.detail.message_bytes),
        "collective_seconds": seconds,
        "fixed_seconds": fixed,
        "growing_seconds": seconds - fixed,
    }
    yield key, evidence


def _straggler(launches: Sequence[LaunchFigures]) -> Iterator[_Found]:
    """Name the rank that computes longest in every launch.

    Noise can make any rank the slowest of a launch, and the largest of several times is above their mean.
    So the rank must be the same in every launch. The level is divided by the number of ranks (Bonferroni).
    """
    referred = [launch for launch in launches if launch.reference_seconds]
    times = [launch.rank_seconds("reference") for launch in referred]
    slowest = {ranks.index(max(ranks)) for ranks in times}
    if len(times) < FEWEST_ROUNDS or len(slowest) > 1:
        return
    rank = slowest.pop()
    excess = [ranks[rank] - statistics.fmean(ranks) for ranks in times]
    compute = statistics.fmean(statistics.fmean(ranks) for ranks in times)
    if t_interval(excess, ALPHA / len(times[0]))[0] > 0 and statistics.fmean(excess) >= MATTERS * compute:
        evidence = {
            "rank": rank,
            "host": referred[-1].ranks[rank].host,
            "excess_seconds": statistics.fmean(excess),
            "compute_seconds": statistics.fmean(ranks[rank] for ranks in times),
        }
        yield "straggler", evidence


def _transports(arms: Sequence[ArmSummary]) -> Iterator[Cause]:
    """Name arms that use TCP on one host while another arm uses shared memory.

    The other arm must have more bandwidth and a shorter step, because otherwise the transport explains no
    cost.
    """
    known = [
        (own, bandwidth)
        for own in arms
        if (bandwidth := own.detail.algorithm_bandwidth) and bandwidth.n >= FEWEST_ROUNDS
    ]
    sharing = [pair for pair in known if pair[0].transport == "shared memory"]
    if not sharing:
        return
    other, reached = max(sharing, key=lambda pair: pair[1].mean)
    for own, bandwidth in known:
        step, alone = own.step_seconds.mean, own.detail.collective_seconds
        slower = bandwidth.high < reached.low and step > other.step_seconds.mean
        matters = _costs(own) and alone is not None and alone.mean >= MATTERS * step
        if "TCP over lo" in own.transport and slower and matters:
            evidence = {
                "transport": own.transport,
                "algorithm_bandwidth": bandwidth.mean,
                "other_arm": other.arm,
                "other_transport": other.transport,
                "other_algorithm_bandwidth": reached.mean,
            }
            yield Cause(key="transport", arm=own.arm, evidence=evidence)
