"""Write the lines about what a machine limits."""

from __future__ import annotations

from collections.abc import Iterator

from compare.analysis.budget import fullest_host
from compare.analysis.summary import Summary
from compare.schema.results import Run
from compare.text import counted


def limits(run: Run, summary: Summary) -> list[str]:
    """Name what holds back all arms alike: priority, quota and cores."""
    return [*_nice(run), *_quota(run), *_oversubscribed(run, summary)]


def _nice(run: Run) -> list[str]:
    highest = max(_attested(run, "nice"), default=0)
    if highest <= 0:
        return []
    return [f"Nice {highest:g}: the ranks wait for programs of higher priority, so load distorts them more."]


def _quota(run: Run) -> list[str]:
    least = min(_attested(run, "core_quota"), default=None)
    cpus = min((rank.machine.cpus for la in run.launches for rank in la.ranks if rank.machine), default=0)
    if least is None or least >= cpus:
        return []
    allowed = f"a control group allows {counted(least, 'core')} of the {cpus} that a host has"
    return [f"CPU quota: {allowed}. Ranks that use it up are stopped, and steps include that."]


def _attested(run: Run, name: str) -> Iterator[float]:
    for launch in run.launches:
        for rank in launch.ranks:
            if isinstance(value := rank.attestation.get(name), int | float):
                yield value


def _oversubscribed(run: Run, summary: Summary) -> list[str]:
    if not summary.oversubscribed:
        return []
    ranks, cores = fullest_host(run)
    threads = f"{counted(ranks, 'rank')} × {counted(run.config.threads_per_rank, 'thread')}"
    return [f"Oversubscribed: {threads} wait for {counted(cores, 'core')} of a host, so no arm is ranked."]
