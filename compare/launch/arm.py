"""Prepare the launch of one arm, and collect exactly one result from every rank."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from backends.launchers import LAUNCHERS, find_launcher, where_it_is_not
from backends.launchers.request import Command, Request
from compare import PACKAGE_ROOT
from compare.errors import OutputError, UnavailableError
from compare.launch.circumstances import Circumstances
from compare.launch.cluster import Cluster
from compare.launch.monitor import Monitor, tail
from compare.launch.place import LaunchPlace
from compare.launch.processes import Ending
from compare.schema.arms import Arm
from compare.schema.collectives import RankSweep, SweepLaunch
from compare.schema.config import LaunchConfig
from compare.schema.environment import inherited, library_settings, settings
from compare.schema.job import LaunchJob, Planned, Progress, read_progress
from compare.schema.launch_files import LaunchFiles
from compare.schema.results import Launch, RankResult, Run
from compare.system.clock import unix_time
from compare.system.files import write_json

_LONGEST_NAME = 100
"""Maximum number of characters that a folder's name has of a label.

A name may have 255 bytes. Labels may be equal where they are cut, but the launch's number differs.
"""

PORT_TAKEN = "another process took its port before it could"
"""The only failure after which a launch is started a second time."""
_PORT_ERRORS = ("EADDRINUSE", "address already in use")

T = TypeVar("T")
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


def forget_launch(directory: Path, planned: Planned) -> None:
    """Remove the folder of a launch that did not finish, and that of its second start."""
    files = launch_files(directory, planned)
    for each in (files, files_again(files)):
        shutil.rmtree(each.directory, ignore_errors=True)


def commands_for(
    config: LaunchConfig, arm: Arm, place: LaunchPlace, own_settings: Mapping[str, str]
) -> list[Command]:
    """Return the commands that launch an arm: one for each host, or a single one for this machine.

    ``own_settings`` are environment variables of this launch. They override those of all arms, and variables
    of the arm itself override both.

    Raises:
        UnavailableError: the arm's launcher is not installed.
    """
    name = arm.runtime.launcher
    other = arm.against
    python = Path(other.executable if other else sys.executable)
    executable = find_launcher(name, python)
    if executable is None:
        raise UnavailableError(
            f"{arm.label} needs {name}, which is not installed.",
            found=f"{where_it_is_not(name, python)}.",
            remedy=LAUNCHERS[name].REMEDY,
        )
    network, hosts = place.cluster.network, place.cluster.hosts
    config = config.as_run_by(arm, hosts[0].slots)
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


def shell_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the library settings that a launch takes from the user's shell, by their names.

    LD_LIBRARY_PATH is one of them. A variable to which ``environment`` gives another value is left out.
    """
    read = inherited(os.environ)
    from_shell = library_settings(read) | {name: read[name] for name in ("LD_LIBRARY_PATH",) if name in read}
    return {name: value for name, value in from_shell.items() if environment.get(name, value) == value}


def launch_files(directory: Path, planned: Planned) -> LaunchFiles:
    """Return the paths of a launch's files, in its own folder below that of the run."""
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "-=." else "_" for c in planned.label)
    return LaunchFiles(directory / "launches" / f"{planned.number:02d}-{name[:_LONGEST_NAME]}")


class PreparedLaunch:
    """One launch with its folder, job, commands and monitor, made before any rank starts."""

    def __init__(
        self,
        config: LaunchConfig,
        planned: Planned,
        cluster: Cluster,
        files: LaunchFiles,
        make_job: MakeJob,
        *,
        in_turns: bool = False,
        started_alone: bool = True,
        restarted_because: str = "",
    ) -> None:
        """Make the launch's folder, and prepare its job and commands.

        With ``in_turns``, it takes turns with other launches of its round. ``started_alone`` and
        ``restarted_because`` become fields of its record.

        Raises:
            OutputError: the launch's folder cannot be made.
            UnavailableError: the launcher is not installed.
        """
        self.planned = planned
        self.began = unix_time()
        self._started_alone = started_alone
        self.restarted_because = restarted_because
        _make_directory(files)
        arm = planned.arm
        self.place = LaunchPlace(cluster, files, in_turns=arm if in_turns else None)
        self.commands = commands_for(config, arm, self.place, self.place.settings())
        self.job = make_job(
            config=config.as_run_by(arm, cluster.hosts[0].slots),
            arm=arm,
            affinity=cluster.cpus()[0],
            number=planned.number,
            launched_at=time.time(),  # ranks compare it with their own clock
            turns=self.place.turns,
            exported=list(cluster.exported),
        )
        ranks, stall_seconds = self.job.config.ranks, self.job.config.stall_seconds
        crowded = any(host.slots > cores for host, cores in zip(cluster.hosts, cluster.cores(), strict=True))
        self._inherited = {
            name: value
            for name, value in library_settings(inherited(os.environ)).items()
            if name not in self.commands[0].environment
        }
        known = Circumstances(arm, shell_settings(self.commands[0].environment), cluster.defects)
        crowded = crowded and ranks > 1
        self.monitor = Monitor(self.place, ranks, stall_seconds, oversubscribed=crowded, circumstances=known)
        write_json(files.commands, [list(command.argv) for command in self.commands])

    def conclude(self, ending: Ending) -> Launch:
        """Return the launch's record with the results of all ranks, or raise the root cause.

        Raises:
            RingsideError: see ``Monitor.conclude``.
        """
        ranks = self._results(ending, RankResult)
        return Launch(**self._record(), ranks=ranks)

    def conclude_sweep(self, ending: Ending) -> SweepLaunch:
        """Return the record of a sweep's launch with the results of all ranks, or raise the root cause.

        Raises:
            RingsideError: see ``Monitor.conclude``.
        """
        ranks = self._results(ending, RankSweep)
        return SweepLaunch(**self._record(), group=self.planned.group, ranks=ranks)

    def _results(self, ending: Ending, kind: type[T]) -> list[T]:
        return self.monitor.conclude(f"{self.planned.label}, round {self.planned.round}", ending, kind)

    def _record(self) -> dict[str, Any]:
        """Return the fields of ``LaunchRecord``, by their names."""
        command = self.commands[0]
        return {
            "number": self.planned.number,
            "round": self.planned.round,
            "arm": self.planned.arm.label,
            "launcher": self.planned.arm.runtime.launcher,
            "argv": [list(command.argv) for command in self.commands],
            "environment": dict(command.environment),
            "inherited": self._inherited,
            "started_at": self.began,
            "seconds": unix_time() - self.began,
            "started_alone": self._started_alone,
            "restarted_because": self.restarted_because,
        }


def _make_directory(files: LaunchFiles) -> None:
    try:
        files.directory.mkdir(parents=True)
    except OSError as error:
        raise OutputError.unwritten(files.directory, error) from None


def files_again(files: LaunchFiles) -> LaunchFiles:
    """Return the paths of the files of a launch's second start, in a folder whose name ends in -again."""
    return LaunchFiles(files.directory.with_name(f"{files.directory.name}-again"))


def port_was_taken(files: LaunchFiles, config: LaunchConfig) -> bool:
    """Return whether a launcher failed because its port was in use.

    Its log must say so, and no rank may have written a progress record.
    """
    began = any(read_progress(files, rank) for rank in range(config.ranks))
    printed = "\n".join(tail(log, lines=200) for log in files.launcher_logs())
    return not began and any(mark in printed for mark in _PORT_ERRORS)
