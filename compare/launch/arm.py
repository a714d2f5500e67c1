"""Plan the launch of one arm: its folders, its job and its commands."""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from backends.launchers import LAUNCHERS, find_launcher, missing_launcher_clause
from backends.launchers.request import Command, Request
from compare import PACKAGE_ROOT
from compare.errors import UnavailableError
from compare.launch.cluster import HostFacts
from compare.schema.arms import Arm
from compare.schema.collectives import SweepLaunch
from compare.schema.config import LaunchConfig
from compare.schema.environment import EXPORTED, inherited_variables, launch_settings, library_settings
from compare.schema.job import LaunchJob, Planned, Progress
from compare.schema.launch_files import LaunchFiles
from compare.schema.plan import LaunchPlan
from compare.schema.results import ArmVerification, Launch, Run
from compare.system.files import temporary_root

_LONGEST_NAME = 100
"""Maximum number of characters that a folder's name takes from an arm's label.

A name may have 255 bytes. Two long labels may be cut to the same text, but the launch's number differs.
"""
_NO_TIMEOUT = str(24 * 60 * 60)
"""A day in seconds. It stands for no limit, because watchdogs and the ranks' lease end what hangs."""

MakeJob: TypeAlias = Callable[..., LaunchJob]
"""Makes a job from the fields of ``LaunchJob``, given as keyword arguments."""


class Observer(Protocol):
    """Receives the events of a run, or of another command that launches arms or groups."""

    def launch_begins(self, planned: Planned) -> None:
        """Receive the next launch before its folder, job and commands are made."""

    def launch_starts(self, planned: Planned, commands: list[Command]) -> None:
        """Receive the commands of a launch just before they are executed."""

    def rank_progressed(self, planned: Planned, progress: Progress | None) -> None:
        """Receive the latest progress record of rank 0, or None before its first."""

    def launch_restarts(self, planned: Planned, reason: str) -> None:
        """Receive the reason why a launch starts again: its port was taken, or Ctrl-Z came."""

    def not_in_turns(self, why: str) -> None:
        """Receive the reason why the arms run one after another instead of in turns."""

    def arm_left_out(self, planned: Planned, why: str) -> None:
        """Receive a launch whose arm does not fit into memory, so that the run goes on without the arm."""

    def arm_goes_bare(self, planned: Planned, why: str) -> None:
        """Receive a launch that does not fit into memory, so that the arm goes on without a proof."""

    def cohort_restarts(self, round_: int) -> None:
        """Receive the number of a round whose launches all start again, after Ctrl-Z and ``fg``."""

    def turn_begins(self, planned: Planned, turn: int, turns: int) -> None:
        """Receive the launch whose turn begins, the turn's number from 1, and the number of turns in all."""

    def launch_ended(self, planned: Planned, launch: Launch) -> None:
        """Receive a launch that succeeded, with the results of its ranks."""

    def round_repeats(self, round_: int, other_load: float) -> None:
        """Receive a round that is repeated, and the largest share of the CPUs that other processes used."""

    def rounds_done(self, run: Run) -> None:
        """Receive the run with its launches so far, before the first launch and after every round."""

    def count_begins(self, ranks: int) -> None:
        """Receive the number of ranks that all launches of ``ringside scale`` have until the next call."""

    def arm_verified(self, arm: ArmVerification) -> None:
        """Receive the result of one arm of ``ringside verify``: its gates, or its failure."""

    def sweep_ended(self, planned: Planned, launch: SweepLaunch | None) -> None:
        """Receive a launch of ``ringside collectives`` that ended, with all results; None if it failed."""

    def sweep_skipped(self) -> None:
        """Note that a launch is left out, because its group failed in an earlier round."""


class LaunchFolders:
    """The folders of one launch, which are the same on every host, and the variables that name them."""

    def __init__(self, hosts: HostFacts, files: LaunchFiles, *, in_turns: bool = False) -> None:
        """Choose the folders, without making them.

        ``files`` are the launch's files on this machine, which receive what the ranks on all hosts write.
        With ``in_turns`` there is also a folder for the pipes on which ranks wait for their turns.
        """
        self.hosts = hosts
        """The hosts on which the launch runs."""
        self.in_place = hosts.is_only_this_machine
        """Whether the ranks write into the run's own folder, because this machine is the only host."""
        name = f"ringside-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        root = temporary_root() if self.in_place else Path("/tmp")  # noqa: S108 -- agents insist on making it
        in_memory = Path("/dev/shm")  # noqa: S108 -- where POSIX shared memory is on Linux
        self.programs_name = f"{name}-programs"
        """Name of the folder for programs with which launchers of this machine reach other hosts."""
        directory = files.directory if self.in_place else root / name
        self.temporary = root / f"{name}-tmp"
        """Folder for temporary files of the ranks."""
        has_memory = not self.in_place or os.access(in_memory, os.W_OK)
        self.shared_memory = (in_memory if has_memory else self.temporary) / name
        """Folder for Open MPI's segments, which is in memory unless /dev/shm cannot be written."""
        self.exported = self.temporary / "exported.json"
        """Path of the file that holds the environment variables of ``-x``."""
        self.turns = str(self.temporary / "turns") if in_turns else ""
        """Folder of the pipes on which ranks wait for their turns; empty if the arms take no turns."""
        self.job_file = directory / files.job.name
        """Path of the job's file, the same on every host."""
        self.mark = str(directory)
        """The launch's name: its folder's path, which all its processes have in their environment."""

    def settings(self) -> dict[str, str]:
        """Return the environment variables that this launch adds to those that all arms have."""
        added = {
            "TMPDIR": str(self.temporary),
            # Open MPI's segments would survive a rank that was killed.
            "OMPI_MCA_btl_vader_backing_directory": str(self.shared_memory),
            EXPORTED: str(self.exported),
        }
        if self.turns:
            # A stopped Horovod over Gloo would take its peers for lost, by default after 30 s.
            added["HOROVOD_GLOO_TIMEOUT_SECONDS"] = _NO_TIMEOUT
        if not self.in_place:
            # What your shell tells the libraries holds on every host; on this machine it is inherited.
            return library_settings(inherited_variables(os.environ)) | added
        if "OMPI_MCA_btl" not in os.environ:
            # Otherwise Open MPI's ranks would listen for peers on other hosts, on every address.
            added["OMPI_MCA_btl"] = "^tcp"
        return added


def plan_launch(
    config: LaunchConfig, planned: Planned, folders: LaunchFolders, port: int, make_job: MakeJob
) -> LaunchPlan:
    """Return the job of a launch, which ``make_job`` makes, and the commands that start it.

    ``port`` is the port of the first host at which ranks meet, if torchrun starts them.

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
    """Return the commands that launch an arm: one for each host, or a single one that this machine executes.

    The environment variables of the launch override those that all arms have, and variables of the arm itself
    override both. If the launcher is not installed, an ``UnavailableError`` is raised.
    """
    name, other = arm.runtime.launcher, arm.against
    python = Path(other.executable if other else sys.executable)
    executable = find_launcher(name, python)
    if executable is None:
        raise UnavailableError(
            f"{arm.label} needs {name}, which is not installed.",
            found=f"{missing_launcher_clause(name, python)}.",
            remedy=LAUNCHERS[name].REMEDY,
        )
    network, hosts = folders.hosts.network, folders.hosts.hosts
    of_all_arms = launch_settings(
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
    """Return the paths of a launch's files, in a folder of its own below ``directory``, that of the run.

    With ``again`` they are those of its second start, in a folder whose name ends in -again.
    """
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "-=." else "_" for c in planned.label)
    folder = f"{planned.number:02d}-{name[:_LONGEST_NAME]}{'-again' if again else ''}"
    return LaunchFiles(directory / "launches" / folder)


def forget_launches(directory: Path, planned: Iterable[Planned]) -> None:
    """Remove the folders of launches that did not finish: those of their first and of their second start."""
    for each, again in product(planned, (False, True)):
        shutil.rmtree(launch_files(directory, each, again=again).directory, ignore_errors=True)
