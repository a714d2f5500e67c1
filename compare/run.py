"""Carry out a run: launch after launch, each verified and saved before the next begins."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from backends import BACKENDS
from compare import parity
from compare.availability import environment_bin, find_launcher
from compare.errors import LaunchError, OutputError, RingsideError, StalledError, UnavailableError
from compare.experiment import Planned, next_launch
from compare.hostfile import Host, normalise
from compare.job import Job, LaunchFiles
from compare.launch import LAUNCHERS
from compare.launch.environment import settings
from compare.launch.request import Command, Request
from compare.launch.supervise import supervise
from compare.results import RESULTS_FILE, Failure, Launch, RankFailure, RankResult, Run, read_json, write_json

if TYPE_CHECKING:
    from compare.arms import Arm
    from compare.config import RunConfig

LOOPBACK = "lo"
"""The interface of every arm on one machine: no port is open to anybody else."""


class Observer(Protocol):
    """Somebody who watches a run."""

    def launch_begins(self, planned: Planned) -> None:
        """Hear that a launch is about to start."""

    def steps_done(self, planned: Planned, steps: int) -> None:
        """Hear how far its first rank has come."""

    def launch_ended(self, planned: Planned, launch: Launch) -> None:
        """Hear that it ended well."""


def create_directory(path: Path) -> Path:
    """Make the folder that a run writes into.

    Raises:
        OutputError: it cannot be made or written, or something lies in it already.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise OutputError(
                f"{path} is not empty.",
                found="A run never writes over what is there.",
                remedy="Choose another folder with --output.",
            )
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"Results cannot be written to {path}.",
            found=error.strerror or str(error),
            remedy="Choose another folder with --output.",
        ) from None
    return path.resolve()


def carry_out(run: Run, directory: Path, affinity: list[int], observer: Observer) -> Run:
    """Launch everything that the run's config asks for, and save after every launch.

    Args:
        run: the run as far as it has come; not changed.
        directory: its folder.
        affinity: the CPUs that every rank may use.
        observer: told of everything that happens.

    Returns:
        The complete run.

    Raises:
        RingsideError: a launch failed; what was finished is saved, and marked incomplete.
        KeyboardInterrupt: likewise.
    """
    write_json(directory / "config.json", run.config)
    (directory / "hostfile").write_text(normalise(run.hosts))
    write_json(directory / RESULTS_FILE, run)
    while planned := next_launch(run.config, len(run.launches)):
        observer.launch_begins(planned)
        try:
            launch = _launch(run, planned, directory, affinity, observer)
        except (RingsideError, KeyboardInterrupt) as error:
            failure = Failure(
                arm=planned.arm.label,
                round=planned.round,
                kind=type(error).__name__,
                message=str(error) or "interrupted",
            )
            write_json(directory / RESULTS_FILE, msgspec.structs.replace(run, failure=failure))
            raise
        observer.launch_ended(planned, launch)
        run = msgspec.structs.replace(run, launches=[*run.launches, launch])
        write_json(directory / RESULTS_FILE, run)
    run = msgspec.structs.replace(run, complete=True)
    write_json(directory / RESULTS_FILE, run)
    return run


def commands_for(config: RunConfig, arm: Arm, hosts: tuple[Host, ...], job_file: Path) -> list[Command]:
    """Say what is executed to launch an arm: what ``--dry-run`` prints and a run starts.

    Raises:
        UnavailableError: the arm's launcher is not there.
    """
    name = BACKENDS[arm.backend].launcher
    executable = find_launcher(name)
    if executable is None:
        raise UnavailableError(
            f"{arm.label} needs {name}, which is not there.",
            found=f"{name} is neither beside {sys.executable} nor on PATH.",
            remedy=BACKENDS[arm.backend].install or "pip install --force-reinstall torch",
        )
    request = Request(
        executable=executable,
        python=Path(sys.executable),
        hosts=hosts,
        module="compare.worker",
        arguments=(str(job_file),),
        port=_free_port(),
        environment=settings(
            threads=config.threads_per_rank, interface=LOOPBACK, executables=environment_bin()
        ),
        interface=LOOPBACK,
        options=arm.options,
    )
    return LAUNCHERS[name].commands(request)


def launch_files(directory: Path, planned: Planned) -> LaunchFiles:
    """Say where the files of a launch lie in a run's folder."""
    name = "".join(c if c.isalnum() or c in "-=." else "_" for c in planned.arm.label)
    return LaunchFiles(directory / "launches" / f"{planned.number:02d}-{name}")


def _launch(run: Run, planned: Planned, directory: Path, affinity: list[int], observer: Observer) -> Launch:
    files = launch_files(directory, planned)
    commands = commands_for(run.config, planned.arm, tuple(run.hosts), files.job)
    launcher = BACKENDS[planned.arm.backend].launcher
    began = time.time()
    job = Job(
        config=run.config,
        arm=planned.arm,
        launcher=launcher,
        dataset=run.dataset,
        affinity=affinity,
        launched_at=began,
    )
    try:
        files.directory.mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            f"{files.directory} could not be made.", found=error.strerror or str(error)
        ) from None
    write_json(files.job, job)

    def tick() -> None:
        progress = files.read_progress(0)
        observer.steps_done(planned, progress.step if progress else 0)

    where = f"{planned.arm.label}, round {planned.round}"
    status = supervise(
        commands,
        # The whole path: another run may write into a folder of the same name.
        name=str(files.directory),
        where=where,
        log=files.launcher_log,
        deadline_seconds=run.config.launch_timeout_seconds,
        on_tick=tick,
    )
    ranks = _collect(run.config, files, where, status)
    parity.check_launch(planned.arm, ranks)
    return Launch(
        number=planned.number,
        round=planned.round,
        arm=planned.arm.label,
        launcher=launcher,
        argv=[list(command.argv) for command in commands],
        environment=dict(commands[0].environment),
        started_at=began,
        seconds=time.time() - began,
        ranks=ranks,
    )


def _collect(config: RunConfig, files: LaunchFiles, where: str, status: int) -> list[RankResult]:
    """Read exactly one result from every rank, or say which rank is the cause that some are missing."""
    failures = [
        read_json(files.failure(rank), RankFailure)
        for rank in range(config.ranks)
        if files.failure(rank).exists()
    ]
    if failures:
        first = min(failures, key=lambda failure: failure.at)
        raise LaunchError(
            f"{where}: rank {first.rank} on {first.host} failed.",
            found=f"{first.message}\n({first.where})",
            remedy=f"Its traceback and output are in {files.log(first.rank)}.",
        )
    missing = [rank for rank in range(config.ranks) if not files.result(rank).exists()]
    if missing:
        raise _unexplained(config, files, where, missing, status)
    if status:
        raise LaunchError(
            f"{where}: every rank finished, but the launcher ended with status {status}.",
            found=_tail(files.launcher_log),
            remedy=f"What it printed is in {files.launcher_log}.",
        )
    return [read_json(files.result(rank), RankResult) for rank in range(config.ranks)]


def _unexplained(
    config: RunConfig, files: LaunchFiles, where: str, missing: list[int], status: int
) -> LaunchError:
    """Explain ranks that left neither a result nor a failure behind."""
    stalled = [rank for rank in missing if "Timeout (" in _tail(files.log(rank), lines=1000)]
    if stalled:
        # Those that wait in a collective time out too; the one that did least is the one they wait for.
        steps = {rank: (files.read_progress(rank) or (0,))[0] for rank in stalled}
        slowest = min(stalled, key=lambda rank: steps[rank])
        return StalledError(
            f"{where}: rank {slowest} made no progress for {config.stall_seconds:g} s.",
            found="; ".join(f"rank {rank} was at step {step}" for rank, step in steps.items()) + ".",
            remedy=f"Where each rank stood is in {files.directory}/rank-*.log; --stall sets the patience.",
        )
    begun = [rank for rank in missing if files.log(rank).exists()]
    return LaunchError(
        f"{where}: no result from rank {', '.join(map(str, missing))}; the launcher ended with status "
        f"{status}.",
        found=_tail(files.log(begun[0]) if begun and _tail(files.log(begun[0])) else files.launcher_log),
        remedy=f"What the launcher and the ranks printed is in {files.directory}.",
    )


def _tail(path: Path, lines: int = 8) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").strip().splitlines()[-lines:])
    except OSError:
        return ""


def _free_port() -> int:
    """Return a port of the loopback interface that is free now; the usual 29500 clashes."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
