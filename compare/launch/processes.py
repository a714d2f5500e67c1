"""Start a launch, watch it, and leave nothing of it behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import psutil

from backends.launchers.request import MARKER
from compare.errors import OutputError, UnavailableError, system_reason
from compare.launch.signals import uninterrupted
from compare.schema.environment import inherited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from backends.launchers.request import Command

_TICK_SECONDS = 0.5
"""Every look around takes a core from a rank: with twenty a second start-up was 1.05 times that of a script
by hand, and with two 1.02. Steps seem to gain as well, but launches differ too much to show it."""
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0


class Ending(NamedTuple):
    """How a launch ended."""

    status: int | None
    """The first exit status that is not 0, or 0; None where the launch was ended because it would not."""
    seconds: float
    timed_out: bool = False


def supervise(
    commands: Sequence[Command],
    *,
    name: str,
    log: Path,
    deadline_seconds: float,
    on_tick: Callable[[], bool],
    wake: int | None = None,
) -> Ending:
    """Execute commands side by side until all have ended, one has failed, or ``on_tick`` gives up.

    Without commands only the deadline and ``on_tick`` end it: a launcher elsewhere starts the ranks.

    Args:
        commands: what to execute; without a shell, with no input.
        name: the launch's own name; marks every process that descends from it.
        log: file for the output of the commands.
        deadline_seconds: maximum time for all of it.
        on_tick: called twice a second, and at the end; returns whether the launch may go on.
        wake: a descriptor; ``on_tick`` is called at once when something can be read from it.

    Returns:
        How it ended. Nothing of the launch is left running then.

    Raises:
        UnavailableError: a command could not be executed.
        OutputError: the log could not be written.
    """
    began = time.monotonic()
    started: list[subprocess.Popen[bytes]] = []
    try:
        with _open(log) as output:
            started.extend(_start(command, name, output) for command in commands)
        while _goes_on(started) or not commands:
            seconds = time.monotonic() - began
            if seconds > deadline_seconds or not on_tick():
                return Ending(None, seconds, timed_out=seconds > deadline_seconds)
            _wait_for_an_end(started, wake, _TICK_SECONDS)
        on_tick()  # a rank that died right before its launcher must be seen before the others are ended
        return Ending(_first_failure(started), time.monotonic() - began)
    finally:
        end_all(name, started)


def _open(log: Path) -> BinaryIO:
    try:
        return log.open("wb")
    except OSError as error:
        raise OutputError(f"{log} could not be written.", found=system_reason(error)) from None


def _start(command: Command, name: str, output: BinaryIO) -> subprocess.Popen[bytes]:
    environment = inherited(os.environ) | dict(command.environment) | {MARKER: name}
    try:
        # A session of its own: Ctrl-C reaches us alone, and we end the ranks in good order.
        return subprocess.Popen(
            command.argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(
            f"{command.argv[0]} could not be executed.",
            found=system_reason(error),
            remedy="`compare backends` says which launchers are there and how to install the others.",
        ) from None


def _goes_on(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is None for process in processes) and not _first_failure(processes)


def _wait_for_an_end(processes: Sequence[subprocess.Popen[bytes]], wake: int | None, seconds: float) -> None:
    """Wait until a process ends or ``wake`` can be read; at most ``seconds``."""
    with contextlib.ExitStack() as opened:
        ends = select.poll()
        if wake is not None:
            ends.register(wake, select.POLLIN)
        for process in processes:
            if process.returncode is not None:
                continue  # reaped: its number may be another's by now
            with contextlib.suppress(OSError):  # no such call in a sandbox: then the next look will see it
                end = os.pidfd_open(process.pid)
                opened.callback(os.close, end)
                ends.register(end, select.POLLIN)
        ends.poll(seconds * 1000)


def _first_failure(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    return next((p.returncode for p in processes if p.poll() not in {None, 0}), 0)


def end_all(name: str, started: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """End every process of a launch on this machine: politely, then not. A second Ctrl-C ends the politeness.

    Args:
        name: the launch's.
        started: those to be reaped, because they are children of this process.
    """
    try:
        # A launcher that was stopped would not hear that it is to end. Ranks must not wake: one that was
        # stopped would say that it had been ended, and would no longer be the one that is silent.
        for process in started:
            process.send_signal(signal.SIGCONT)
        _end_with(psutil.Process.terminate, name)
    finally:
        with uninterrupted():
            _end_with(_kill_but_trackers, name)
            _end_with(psutil.Process.kill, name)
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_GRACE_SECONDS)


def _kill_but_trackers(process: psutil.Process) -> None:
    """Spare Python's tracker of shared memory: it removes what the others leave, and ends when they have."""
    if not is_tracker(process):
        process.kill()


def is_tracker(process: psutil.Process) -> bool:
    """Whether a process is Python's tracker of shared memory.

    Raises:
        psutil.Error: it is gone.
    """
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())


def _end_with(end: Callable[[psutil.Process], None], name: str) -> None:
    told: set[psutil.Process] = set()
    patience = time.monotonic() + _GRACE_SECONDS
    # Looked for anew each time: one may have been started meanwhile; and in a container orphans that have
    # ended stay zombies, and nobody need wait for those.
    while left := list(descendants(name)):
        for process in left:
            if process not in told:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
        told.update(left)
        if time.monotonic() > patience:
            return
        time.sleep(_POLL_SECONDS)


def descendants(name: str) -> Iterator[psutil.Process]:
    """Find the live processes of a launch by the mark in their environment.

    Launchers put ranks into sessions of their own, and orphans change their parent: neither process
    groups nor the process tree would find them all.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == name and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended but was not reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
