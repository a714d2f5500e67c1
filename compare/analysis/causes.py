"""Name the causes of the sync cost, each with its measured evidence.

A cause is named if the interval of its seconds lies above zero and their mean is at least ``LEAST_SHARE`` of
a step. A sync cost below noise has no cause. Fewer than ``FEWEST_ROUNDS`` rounds have no useful interval, so
only oversubscription is named in such a run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from compare.analysis.budget import fullest_host
from compare.analysis.cost_model import split_collectives
from compare.analysis.figures import Estimate, Figures, LaunchFigures, t_interval
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

LEAST_SHARE = 0.05
"""A cause is reported if it takes at least this share of a step."""
DOMINANT_SHARE = 2 / 3
"""One of two parts dominates from this share on, because it is then twice the other."""
FEWEST_ROUNDS = 3
"""An arm with fewer launches gets no cause, because the range of two values often misses the true mean."""
ALPHA = 0.05
"""Probability that a straggler is named although all ranks are equally fast."""
_HALF = 0.5


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a sync cost, with the arm that has it and the evidence."""

    key: Key
    arm: str
    """Label of the arm; empty for a cause of the whole run."""
    evidence: dict[str, Any]
    """Figures and names that show it, by key; keys that end in ``_seconds`` are seconds per step."""


_KeyWithEvidence: TypeAlias = tuple[Key, dict[str, Any]]
"""The key of a cause and its evidence, as in `Cause`."""


def find_causes(figures: Figures, summary: Summary) -> list[Cause]:
    """Return the causes of every arm's sync cost, arm by arm; those that lie in the transport come last.

    If threads outnumber the cores, that is the only cause, because ranks that wait for a core would look like
    any other.
    """
    run = figures.run
    if summary.oversubscribed:
        ranks, cores = fullest_host(run)
        evidence = {"ranks": ranks, "threads_per_rank": run.config.threads_per_rank, "cores": cores}
        return [Cause(key="oversubscription", arm="", evidence=evidence)]
    labels = {arm.label for arm in run.config.synchronising}
    arms = [arm for arm in summary.arms if arm.arm in labels]
    causes = [
        Cause(key=key, arm=arm.arm, evidence=evidence)
        for arm in arms
        for key, evidence in _causes_of_arm(figures.common, arm)
    ]
    # A run whose noise hides every difference shows no shorter step.
    explains_transports = len(run.hosts) == 1 and not summary.noise_hides_all
    return [*causes, *(_transport_causes(arms) if explains_transports else ())]


def _causes_of_arm(figures: Figures, arm: ArmSummary) -> Iterator[_KeyWithEvidence]:
    if arm.below_noise:
        return
    launches, detail = figures.of(arm.arm), arm.detail
    if _has_sync_cost(arm):
        if figures.run.config.ranks > 1:
            yield from _little_compute(launches)
            yield from _latency_or_bandwidth(launches, arm)
        elif detail.exposed_seconds:
            yield "lone_rank", {"exposed_seconds": detail.exposed_seconds.mean}
    background, reference = detail.background_seconds, detail.reference_seconds
    if background and reference and _is_significant(background, arm.step_seconds.mean):
        yield "background", {"background_seconds": background.mean, "reference_seconds": reference.mean}
    yield from _straggler(launches)


def _is_significant(cost: Estimate | None, step_seconds: float) -> bool:
    """Return whether a cost in seconds is beyond noise, and at least ``LEAST_SHARE`` of a step."""
    if cost is None or cost.n < FEWEST_ROUNDS:
        return False
    return cost.low > 0 and cost.mean >= LEAST_SHARE * step_seconds


def _has_sync_cost(arm: ArmSummary) -> bool:
    step, costs = arm.step_seconds.mean, (arm.detail.exposed_seconds, arm.sync_seconds)
    return not arm.below_noise and any(_is_significant(cost, step) for cost in costs)


def _little_compute(launches: Sequence[LaunchFigures]) -> Iterator[_KeyWithEvidence]:
    """Yield a cause if the arm's collectives, timed without training, take longer than a step computes.

    Not even perfect overlap could hide such collectives.
    """
    pairs = [
        (launch.collective_seconds, launch.reference_seconds)
        for launch in launches
        if launch.collective_seconds and launch.reference_seconds
    ]
    if len(pairs) < FEWEST_ROUNDS:
        return
    if Estimate.geometric(collective / compute for collective, compute in pairs).low > 1:
        collective, compute = (statistics.geometric_mean(seconds) for seconds in zip(*pairs, strict=True))
        yield "little_compute", {"compute_seconds": compute, "collective_seconds": collective}


def _latency_or_bandwidth(launches: Sequence[LaunchFigures], arm: ArmSummary) -> Iterator[_KeyWithEvidence]:
    """Yield latency or bandwidth as a cause, if it takes most of the collectives' time."""
    parts = [parts for launch in launches if (parts := split_collectives(launch))]
    if len(parts) < FEWEST_ROUNDS:
        return
    share = Estimate.of(part.latency / part.seconds for part in parts)
    if share.mean >= DOMINANT_SHARE and share.low > _HALF:
        key: Key = "latency"
    elif share.mean <= 1 - DOMINANT_SHARE and share.high < _HALF:
        key = "bandwidth"
    else:
        return
    seconds = statistics.geometric_mean(part.seconds for part in parts)
    fixed = share.mean * seconds
    if seconds < LEAST_SHARE * arm.step_seconds.mean:
        return
    evidence = {
        "calls": len(arm.detail.message_bytes),
        "message_bytes": sum(arm.detail.message_bytes),
        "collective_seconds": seconds,
        "fixed_seconds": fixed,
        "growing_seconds": seconds - fixed,
    }
    yield key, evidence


def _straggler(launches: Sequence[LaunchFigures]) -> Iterator[_KeyWithEvidence]:
    """Yield a cause if one rank computes longer than the others in every launch.

    Noise can make any rank the slowest of a launch, and the largest of several times is above their mean.
    So the rank must be the same in every launch. ``ALPHA`` is divided by the number of ranks (Bonferroni).
    """
    timed = [launch for launch in launches if launch.reference_seconds]
    times = [launch.rank_seconds("reference") for launch in timed]
    slowest = {ranks.index(max(ranks)) for ranks in times}
    if len(times) < FEWEST_ROUNDS or len(slowest) > 1:
        return
    rank = slowest.pop()
    excess = [ranks[rank] - statistics.fmean(ranks) for ranks in times]
    compute = statistics.fmean(statistics.fmean(ranks) for ranks in times)
    if t_interval(excess, ALPHA / len(times[0]))[0] > 0 and statistics.fmean(excess) >= LEAST_SHARE * compute:
        evidence = {
            "rank": rank,
            "host": timed[-1].ranks[rank].host,
            "excess_seconds": statistics.fmean(excess),
            "compute_seconds": statistics.fmean(ranks[rank] for ranks in times),
        }
        yield "straggler", evidence


def _transport_causes(arms: Sequence[ArmSummary]) -> Iterator[Cause]:
    """Yield a cause for each arm that uses TCP on one host while another arm uses shared memory.

    The other arm must have more bandwidth and a shorter step, because otherwise the transport explains no
    cost.
    """
    known = [
        (arm, bandwidth)
        for arm in arms
        if (bandwidth := arm.detail.algorithm_bandwidth) and bandwidth.n >= FEWEST_ROUNDS
    ]
    sharing = [pair for pair in known if pair[0].transport == "shared memory"]
    if not sharing:
        return
    other, other_bandwidth = max(sharing, key=lambda pair: pair[1].mean)
    for arm, bandwidth in known:
        step, collectives = arm.step_seconds.mean, arm.detail.collective_seconds
        is_slower = bandwidth.high < other_bandwidth.low and step > other.step_seconds.mean
        is_large = collectives is not None and collectives.mean >= LEAST_SHARE * step
        if "TCP over lo" in arm.transport and is_slower and is_large and _has_sync_cost(arm):
            evidence = {
                "transport": arm.transport,
                "algorithm_bandwidth": bandwidth.mean,
                "other_arm": other.arm,
                "other_transport": other.transport,
                "other_algorithm_bandwidth": other_bandwidth.mean,
            }
            yield Cause(key="transport", arm=arm.arm, evidence=evidence)
