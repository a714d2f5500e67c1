"""Launch one arm, or one group to time its collectives, while no other launch is alive."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from compare.launch.alive import AliveLaunches
from compare.launch.arm import MakeJob, Observer, PreparedLaunch, forget_launch
from compare.launch.cluster import Cluster
from compare.launch.processes import Ending
from compare.launch.signals import Suspended, stop_until_continued, suspendable
from compare.schema.collectives import SweepConfig, SweepLaunch
from compare.schema.job import Job, Planned, Proof, SweepJob
from compare.schema.results import Launch, Run

_SUSPENDED = "this program was suspended (Ctrl-Z)"

T = TypeVar("T")


def launch_arm(
    run: Run,
    planned: Planned,
    directory: Path,
    cluster: Cluster,
    observer: Observer,
    *,
    proof: Proof = "brief",
    budget_ends_at: float = math.inf,
) -> Launch:
    """Launch an arm, and return the launch with one result from every rank.

    It starts a second time if another process took its port, and again after every Ctrl-Z and ``fg``.
    ``proof`` is the parity check that every rank makes, unless its training repeats a proven one. Its outcome
    is part of the result, and a failed check raises no error. ``budget_ends_at`` is a Unix time.

    Raises:
        BudgetError: the run's budget ended before the launch did.
        HostError: a host was lost.
        LaunchError: a rank failed, died or stalled.
        OutputError: the run's folder cannot be written.
        UnavailableError: the launcher is not installed.
    """
    make_job = partial(Job, dataset=run.dataset, proof=proof, proven=run.proven(planned.arm))
    alone = partial(AliveLaunches, run.config, directory, cluster, observer, budget_ends_at=budget_ends_at)
    launch = partial(_launch, alone, make_job, planned, PreparedLaunch.conclude)
    return _until_continued(launch, planned, directory, observer)


def launch_sweep(
    config: SweepConfig,
    planned: Planned,
    directory: Path,
    cluster: Cluster,
    observer: Observer,
    *,
    budget_ends_at: float = math.inf,
) -> SweepLaunch:
    """Launch a group to time its collectives without training, and return one result from every rank.

    It starts again in the same cases as in ``launch_arm``.

    Raises:
        BudgetError: ``budget_ends_at``, a Unix time, came before the launch ended.
        HostError: a host was lost.
        LaunchError: a rank failed, died or stalled.
        OutputError: the run's folder cannot be written.
        UnavailableError: the launcher is not installed.
    """
    interface = cluster.network.interface if len(cluster.hosts) > 1 else ""
    make_job = partial(SweepJob, group=planned.group, interface=interface)
    alone = partial(AliveLaunches, config, directory, cluster, observer, budget_ends_at=budget_ends_at)
    launch = partial(_launch, alone, make_job, planned, PreparedLaunch.conclude_sweep)
    return _until_continued(launch, planned, directory, observer)


def _launch(
    alone: Callable[..., AliveLaunches],
    make_job: MakeJob,
    planned: Planned,
    conclude: Callable[[PreparedLaunch, Ending], T],
) -> T:
    launches = alone(make_job=lambda _: make_job)
    try:
        launches.start(planned)
        return launches.after_its_port(planned, lambda launch: conclude(launch, launches.finish(launch)))
    finally:
        launches.end_all()


def _until_continued(launch: Callable[[], T], planned: Planned, directory: Path, observer: Observer) -> T:
    """Return what ``launch`` returns; after Ctrl-Z, end the launch, stop until ``fg``, and launch again."""
    while True:
        try:
            with suspendable():
                return launch()
        except Suspended:
            forget_launch(directory, planned)
            stop_until_continued()
            observer.launch_restarts(planned, _SUSPENDED)
