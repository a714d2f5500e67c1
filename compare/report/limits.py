"""Write the warnings about what holds back the ranks on a machine."""

from __future__ import annotations

from collections.abc import Iterator

from compare.analysis.budget import fullest_host
from compare.analysis.summary import Summary
from compare.report.copies import refused_copies
from compare.report.told import told
from compare.schema.results import Run
from compare.text import counted


def limits(run: Run, summary: Summary) -> list[str]:
    """Return the warnings about priority, CPU quotas, cores and refused copies, then those of ``told``."""
    attested = {
        arm.label: [rank.attestation for launch in run.of(arm) for rank in launch.ranks]
        for arm in run.config.arms
    }
    return [
        *_nice(run),
        *_quota(run),
        *_oversubscribed(run, summary),
        *refused_copies(attested),
        *told(run),
    ]


def _nice(run: Run) -> list[str]:
    attested = (rank.attestation.get("nice") for launch in run.launches for rank in launch.ranks)
    highest = max((nice for nice in attested if isinstance(nice, int)), default=0)
    if highest <= 0:
        return []
    return [f"Nice {highest:g}: the ranks wait for programs of higher priority, so load distorts them more."]


def _quota(run: Run) -> list[str]:
    least, cpus = min(_quotas(run), default=(None, 0))
    if least is None:
        return []
    allowed = f"a control group allows {counted(least, 'core')} of the {cpus} that a host has"
    return [f"CPU quota: {allowed}. Ranks that use it up are stopped, and steps include that."]


def _quotas(run: Run) -> Iterator[tuple[float, int]]:
    """Yield the CPU quota, in cores, and the CPUs of each host that has more CPUs than its quota allows."""
    for launch in run.launches:
        for rank in launch.ranks:
            quota, cpus = rank.attestation.get("core_quota"), rank.machine.cpus if rank.machine else 0
            if isinstance(quota, int | float) and quota < cpus:
                yield quota, cpus


def _oversubscribed(run: Run, summary: Summary) -> list[str]:
    if not summary.oversubscribed:
        return []
    ranks, cores = fullest_host(run)
    threads = f"{counted(ranks, 'rank')} × {counted(run.config.threads_per_rank, 'thread')}"
    return [f"Oversubscribed: {threads} wait for {counted(cores, 'core')} of a host, so no arm is ranked."]
