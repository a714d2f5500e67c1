"""Launch one arm once, and take exactly one result from every rank."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from backends import BACKENDS
from backends.launchers import LAUNCHERS, environment_bin, find_launcher, where_it_is_not
from backends.launchers.request import Command, Request
from compare.errors import BudgetError, LaunchError, OutputError, UnavailableError, system_reason
from compare.launch.cluster import Cluster
from compare.launch.monitor import Monitor, tail
from compare.launch.place import LaunchPlace
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from compare.schema.environment import inherited, library_settings, settings
from compare.schema.files import write_json
from compare.schema.job import Job, Planned, Proof, read_progress
from compare.schema.launch_files import LaunchFiles
from compare.schema.results import Launch, RankResult, Run

_LONGEST_NAME = 100
"""Maximum length of an arm's label in the name of a folder.

A name may have 255 bytes. The number of the launch makes it unique.
"""

_PORT_TAKEN = ("EADDRINUSE", "address already in use")


class Observer(Protocol):
    """Receives what happens in a run."""

    def launch_begins(self, planned: Planned) -> None:
        """Receive a launch that is about to start."""

    def launch_starts(self, planned: Planned, commands: list[Command]) -> None:
        """Receive the commands that are started."""

    def steps_done(self, planned: Planned, steps: int) -> None:
        """Receive the number of steps that rank 0 has done."""

    def launch_restarts(self, planned: Planned, reason: str) -> None:
        """Receive the reason why a launch is started a second time."""

    def launch_ended(self, planned: Planned, launch: Launch) -> None:
        """Receive a launch that ended well."""

    def round_repeats(self, round_: int, other_load: float) -> None:
        """Receive a round that is repeated, and its other CPU load."""


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
    """Launch an arm, and once more if another process took its port.

    ``proof`` is what every rank trains beside a single process, before its training. Its outcome is part of
    what is returned; nothing is judged here. ``budget_ends_at`` is a Unix time.

    Raises:
        BudgetError: the run's budget was over before the launch was.
        HostError: a host was lost.
        LaunchError: a rank failed, died or stalled.
        OutputError: the run's folder cannot be written.
        UnavailableError: the launcher is not installed.
    """
    files = launch_files(directory, planned)
    launch = partial(
        _launch_once, run, planned, cluster, observer, proof=proof, budget_ends_at=budget_ends_at
    )
    try:
        return launch(files)
    except LaunchError:
        if not _port_was_taken(files, run.config):
            raise
    reason = "another process took its port before it could"
    observer.launch_restarts(planned, reason)
    again = files.directory.with_name(f"{files.directory.name}-again")
    return launch(LaunchFiles(again), restarted_because=reason)


def commands_for(
    config: RunConfig, arm: Arm, place: LaunchPlace, own_settings: Mapping[str, str]
) -> list[Command]:
    """Return the commands that launch an arm.

    ``own_settings`` is the environment of this launch alone, over that of all arms.

    Raises:
        UnavailableError: the arm's launcher is not installed.
    """
    name = BACKENDS[arm.backend].launcher
    executable = find_launcher(name)
    if executable is None:
        raise UnavailableError(
            f"{arm.label} needs {name}, which is not installed.",
            found=f"{where_it_is_not(name)}.",
            remedy=LAUNCHERS[name].REMEDY,
        )
    network, hosts = place.cluster.network, place.cluster.hosts
    config = config.as_run_by(arm, hosts[0].slots)
    of_all_arms = settings(
        threads=config.threads_per_rank, interface=network.interface, executables=environment_bin()
    )
    mpirun = find_launcher("mpirun")
    request = Request(
        executable=executable,
        python=Path(sys.executable),
        hosts=(msgspec.structs.replace(hosts[0], slots=1),) if arm.one_process else hosts,
        module="compare.worker",
        arguments=(name, str(place.job_file)),
        port=place.cluster.free_port(),
        environment=of_all_arms | dict(own_settings) | arm.environment,
        interface=network.interface,
        options=arm.options,
        exported=tuple(arm.environment),
        address=network.addresses[0],
        network=network.network,
        mpi_prefix=mpirun.parent.parent if mpirun else None,
        mark=place.mark,
    )
    return LAUNCHERS[name].commands(request)


def launch_files(directory: Path, planned: Planned) -> LaunchFiles:
    """Return the files of a launch in a run's folder."""
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "-=." else "_" for c in planned.arm.label)
    return LaunchFiles(directory / "launches" / f"{planned.number:02d}-{name[:_LONGEST_NAME]}")


def _launch_once(
    run: Run,
    planned: Planned,
    cluster: Cluster,
    observer: Observer,
    files: LaunchFiles,
    *,
    proof: Proof,
    budget_ends_at: float,
    restarted_because: str = "",
) -> Launch:
    launcher = BACKENDS[planned.arm.backend].launcher
    began = time.time()
    budget = budget_ends_at - began
    if budget <= 0:
        raise BudgetError("The budget is over.")
    job = Job(
        config=run.config.as_run_by(planned.arm, cluster.hosts[0].slots),
        arm=planned.arm,
        dataset=run.dataset,
        affinity=cluster.cpus()[0],
        number=planned.number,
        proof=proof,
        launched_at=began,
        exported=list(cluster.exported),
    )
    _make_directory(files)
    place = cluster.place(files)
    commands = commands_for(run.config, planned.arm, place, place.settings())
    write_json(files.commands, [list(command.argv) for command in commands])
    observer.launch_starts(planned, commands)
    ranks = _supervised(job, planned, place, commands, observer, budget_seconds=budget)
    return Launch(
        number=planned.number,
        round=planned.round,
        arm=planned.arm.label,
        launcher=launcher,
        argv=[list(command.argv) for command in commands],
        environment=dict(commands[0].environment),
        inherited={
            name: value
            for name, value in library_settings(inherited(os.environ)).items()
            if name not in commands[0].environment
        },
        started_at=began,
        seconds=time.time() - began,
        restarted_because=restarted_because,
        ranks=ranks,
    )


def _supervised(
    job: Job,
    planned: Planned,
    place: LaunchPlace,
    commands: list[Command],
    observer: Observer,
    *,
    budget_seconds: float,
) -> list[RankResult]:
    config = job.config
    monitor = Monitor(place, config.ranks, config.stall_seconds)

    def tick() -> bool:
        observer.steps_done(planned, monitor.steps_done())
        return monitor.tick()

    deadline = min(config.launch_timeout_seconds, budget_seconds)
    ending = place.carry_out(commands, job, deadline_seconds=deadline, on_tick=tick)
    if ending.timed_out and deadline < config.launch_timeout_seconds:
        raise BudgetError("The budget is over.")
    return monitor.conclude(f"{planned.arm.label}, round {planned.round}", ending)


def _make_directory(files: LaunchFiles) -> None:
    try:
        files.directory.mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            f"{files.directory} could not be made.",
            found=system_reason(error),
            remedy="Free some space, or choose another --output.",
        ) from None


def _port_was_taken(files: LaunchFiles, config: RunConfig) -> bool:
    """Return whether a launcher failed because its port was in use."""
    began = any(read_progress(files, rank) for rank in range(config.ranks))
    printed = "\n".join(tail(log, lines=200) for log in files.launcher_logs())
    return not began and any(mark in printed for mark in _PORT_TAKEN)
