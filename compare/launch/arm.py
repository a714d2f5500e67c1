"""Prepare the launch of one arm, and collect exactly one result from every rank."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from backends.launchers import LAUNCHERS, find_launcher, where_it_is_not
from backends.launchers.request import Command, Request
from compare import PACKAGE_ROOT
from compare.errors import OutputError, UnavailableError
from compare.launch.circumstances import Circumstances, shell_settings
from compare.launch.cluster import Cluster
from compare.launch.monitor import Monitor, tail
from compare.launch.place import LaunchFolders, LaunchPlace
from compare.launch.processes import SUCCEEDED, Ending
from compare.schema.arms import Arm
from compare.schema.collectives import RankSweep, SweepLaunch
from compare.schema.config import LaunchConfig
from compare.schema.environment import library_settings, settings
from compare.schema.job import LaunchJob, Planned, Progress, read_progress
from compare.schema.launch_files import LaunchFiles
from compare.schema.results import Launch, RankResult, Run
from compare.system.clock import unix_time
from compare.system.files import write_json

_LONGEST_NAME = 100
"""Maximum number of characters that a folder's name has of a label.

A name may have 255 bytes. Labels may be equal where they are cut, but the launch's number differs.
"""
_PORT_ERRORS = ("EADDRINUSE", "address already in use")

MakeJob: TypeAlias = Callable[..., LaunchJob]
"""Makes a job from the fields of ``LaunchJob``, given as keyword arguments."""


class Observer(Protocol):
    """Receives the events of a run."""

    def launch_begins(self, planned: Planned) -> None:
        """Receive a launch before it is prepared."""

    def launch_starts(self, planned: Planned, commands: list[Command]) -> None:
        """Receive the commands of a launch just before they are executed."""

    def rank_progressed(self, planned: Planned, progress: Progress | None) -> None:
        """Receive the latest progress record of rank 0, or None before its first."""

    def launch_restarts(self, planned: Planned, reason: str) -> None:
        """Receive the reason why a launch starts again: its port was taken, or Ctrl-Z came."""

    def not_in_turns(self, why: str) -> None:
        """Receive the reason why the arms run one after another instead of in turns."""

    def cohort_restarts(self, round_: int) -> None:
        """Receive a round that begins again after Ctrl-Z and ``fg``."""

    def turn_begins(self, planned: Planned, turn: int, turns: int) -> None:
        """Receive the launch whose turn begins, and the turn's number out of all turns of the cohort."""

    def launch_ended(self, planned: Planned, launch: Launch) -> None:
        """Receive a launch that succeeded, with the results of its ranks."""

    def round_repeats(self, round_: int, other_load: float) -> None:
        """Receive a round that is repeated, and the largest fraction of the CPUs used by other processes."""

    def rounds_done(self, run: Run) -> None:
        """Receive the run with its launches so far, before the first launch and after every round."""


class LaunchPlan(NamedTuple):
    """What a launch starts from."""

    job: LaunchJob
    """The job that every rank reads."""
    commands: list[Command]
    """One for each host if the launcher runs on all of them, as torchrun does; otherwise one in all."""


def plan_launch(
    config: LaunchConfig, planned: Planned, folders: LaunchFolders, port: int, make_job: MakeJob
) -> LaunchPlan:
    """Return the job of a launch, which ``make_job`` makes, and its commands.

    ``port`` is a free port of the first host.

    Raises:
        UnavailableError: the arm's launcher is not installed.
    """
    hosts = folders.hosts
    job = make_job(
        config=config.as_run_by(planned.arm, hosts.hosts[0].slots),
        arm=planned.arm,
        affinity=hosts.machines[0].cpus,
        number=planned.number,
        launched_at=time.time(),  # ranks compare it with their own clock
        turns=folders.turns,
        exported=list(hosts.exported),
    )
    return LaunchPlan(job, _commands(job.config, planned.arm, folders, port))


def _commands(config: LaunchConfig, arm: Arm, folders: LaunchFolders, port: int) -> list[Command]:
    """Return the commands that launch an arm: one for each host, or a single one for this machine.

    The settings of ``folders`` override those of all arms, and variables of the arm itself override both.
    """
    name, other = arm.runtime.launcher, arm.against
    python = Path(other.executable if other else sys.executable)
    executable = find_launcher(name, python)
    if executable is None:
        raise UnavailableError(
            f"{arm.label} needs {name}, which is not installed.",
            found=f"{where_it_is_not(name, python)}.",
            remedy=LAUNCHERS[name].REMEDY,
        )
    network, hosts = folders.hosts.network, folders.hosts.hosts
    of_all_arms = settings(
        threads=config.threads_per_rank,
        interface=network.interface,
        executables=python.parent,
        sources=Path(other.sources) if other else PACKAGE_ROOT,
    )
    mpirun = find_launcher("mpirun", python)
    request = Request(
        executable=executable,
        python=python,
        hosts=(msgspec.structs.replace(hosts[0], slots=1),) if arm.traits.one_process else hosts,
        module="compare.worker",
        arguments=(name, str(folders.job_file)),
        port=port,
        environment=of_all_arms | folders.settings() | arm.environment,
        interface=network.interface,
        options=arm.options,
        exported=tuple(arm.environment),
        address=network.addresses[0],
        network=network.network,
        mpi_prefix=mpirun.parent.parent if mpirun else None,
        mark=folders.mark,
    )
    return LAUNCHERS[name].commands(request)


def launch_files(directory: Path, planned: Planned, *, again: bool = False) -> LaunchFiles:
    """Return the paths of a launch's files, in its own folder below that of the run.

    The folder of its second start has a name that ends in -again.
    """
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "-=." else "_" for c in planned.label)
    folder = f"{planned.number:02d}-{name[:_LONGEST_NAME]}{'-again' if again else ''}"
    return LaunchFiles(directory / "launches" / folder)


def forget_launch(directory: Path, planned: Planned) -> None:
    """Remove the folder of a launch that did not finish, and that of its second start."""
    for again in (False, True):
        shutil.rmtree(launch_files(directory, planned, again=again).directory, ignore_errors=True)


class PreparedLaunch:
    """One launch with its folder, job, commands and monitor, made before any rank starts."""

    def __init__(
        self,
        config: LaunchConfig,
        planned: Planned,
        cluster: Cluster,
        directory: Path,
        make_job: MakeJob,
        *,
        in_turns: bool = False,
        started_alone: bool = True,
    ) -> None:
        """Make the launch's folder below ``directory``, and prepare its job and commands.

        With ``in_turns``, it takes turns with other launches of its round. ``started_alone`` becomes a field
        of its record.

        Raises:
            OutputError: the launch's folder cannot be made.
            UnavailableError: the launcher is not installed.
        """
        self.planned = planned
        self._config = config
        self._cluster = cluster
        self._directory = directory
        self._make_job = make_job
        self._in_turns = in_turns
        self._started_alone = started_alone
        self.prepare()

    def prepare(self, *, restarted_because: str = "") -> None:
        """Prepare the launch; with a reason, prepare its second start, in another folder.

        Raises:
            RingsideError: see the constructor.
        """
        planned, cluster, arm = self.planned, self._cluster, self.planned.arm
        self.restarted_because = restarted_because
        self.began = unix_time()
        self.waited_seconds = 0.0
        """Time in which the launch was waited for, without the turns of others."""
        files = launch_files(self._directory, planned, again=bool(restarted_because))
        try:
            files.directory.mkdir(parents=True)
        except OSError as error:
            raise OutputError.unwritten(files.directory, error) from None
        self.place = LaunchPlace(cluster, files, arm, in_turns=self._in_turns)
        self.job, self.commands = plan_launch(
            self._config, planned, self.place, cluster.free_port(), self._make_job
        )
        config, hosts = self.job.config, zip(cluster.hosts, cluster.cores(), strict=True)
        self._from_shell = shell_settings(self.commands[0].environment)
        self.monitor = Monitor(
            self.place,
            config.ranks,
            config.stall_seconds,
            oversubscribed=config.ranks > 1 and any(host.slots > cores for host, cores in hosts),
            circumstances=Circumstances(arm, self._from_shell, cluster.defects),
        )
        write_json(files.commands, [list(command.argv) for command in self.commands])

    def port_was_taken(self) -> bool:
        """Return whether a launcher failed because its port was in use.

        Its log must say so, and no rank may have written a progress record.
        """
        files = self.place.files
        began = any(read_progress(files, rank) for rank in range(self.job.config.ranks))
        printed = "\n".join(tail(log, lines=200) for log in files.launcher_logs())
        return not began and any(mark in printed for mark in _PORT_ERRORS)

    def conclude(self, ending: Ending = SUCCEEDED) -> Launch:
        """Return the launch's record with the results of all ranks, or raise the root cause.

        Raises:
            RingsideError: see ``Monitor.conclude``.
        """
        return Launch(**self._record(ending, RankResult))

    def conclude_sweep(self) -> SweepLaunch:
        """Return the record of a sweep's launch with the results of all ranks, or raise the root cause.

        Raises:
            RingsideError: see ``Monitor.conclude``.
        """
        return SweepLaunch(**self._record(SUCCEEDED, RankSweep), group=self.planned.group)

    def _record(self, ending: Ending, kind: type[RankResult | RankSweep]) -> dict[str, Any]:
        """Return the fields of ``LaunchRecord``, by their names, with the results of all ranks."""
        where = f"{self.planned.label}, round {self.planned.round}"
        ranks = self.monitor.conclude(where, ending, kind)
        set_here = dict(self.commands[0].environment)
        return {
            "number": self.planned.number,
            "round": self.planned.round,
            "arm": self.planned.arm.label,
            "launcher": self.planned.arm.runtime.launcher,
            "argv": [list(command.argv) for command in self.commands],
            "environment": set_here,
            "inherited": {
                name: value
                for name, value in library_settings(self._from_shell).items()
                if name not in set_here
            },
            "started_at": self.began,
            "seconds": unix_time() - self.began,
            "started_alone": self._started_alone,
            "restarted_because": self.restarted_because,
            "ranks": ranks,
        }
