"""Start a launcher, and leave none of its processes behind."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import psutil

from backends.launchers.request import MARKER, Command
from compare.errors import OutputError, UnavailableError, system_reason
from compare.launch.signals import uninterrupted
from compare.schema.environment import inherited
from compare.schema.launch_files import LaunchFiles

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- where MPICH makes its segments
_TICK_SECONDS = 0.5
"""Time between two ticks; each takes time from a rank."""
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0
"""Maximum time for processes to exit after SIGTERM, and again after SIGKILL."""


class Ending(NamedTuple):
    """How a launch ended."""

    status: int | None
    """The exit status of the launcher; None where it was ended."""
    seconds: float = 0.0
    timed_out: bool = False
    abandoned: bool = False
    """Whether agents ended it, because the parent sent no messages."""


def supervise(
    command: Command | None,
    *,
    name: str,
    log: Path,
    deadline_seconds: float,
    on_tick: Callable[[], bool],
    wake: Sequence[int] = (),
    while_waiting: Callable[[], None] = lambda: None,
) -> Ending:
    """Execute a command until it ends or ``on_tick`` gives up.

    Nothing of the launch is left running on this machine afterwards. The command gets no shell and no input.
    Without a command, another machine starts the ranks of this one; ``on_tick`` or the deadline ends them.
    ``name`` marks every process that descends from the launch. ``on_tick`` is called twice a second, and at
    once when one of ``wake`` can be read. It returns whether the launch may go on. Processes may take seconds
    to exit; ``while_waiting`` is called meanwhile.

    Raises:
        UnavailableError: the command could not be executed.
        OutputError: the log could not be written.
    """
    began = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    try:
        if command:
            with _open(log) as output:
                process = _start(command, name, output)
        while process is None or process.poll() is None:
            seconds = time.monotonic() - began
            if seconds > deadline_seconds or not on_tick():
                return Ending(None, seconds, timed_out=seconds > deadline_seconds)
            _wait(process, wake, _TICK_SECONDS)
        return Ending(process.returncode, time.monotonic() - began)
    finally:
        end_all(name, process, while_waiting)


def _open(log: Path) -> BinaryIO:
    try:
        return log.open("wb")
    except OSError as error:
        raise OutputError(
            f"{log} could not be written.",
            found=system_reason(error),
            remedy="Free some space, or choose another --output.",
        ) from None


def _start(command: Command, name: str, output: BinaryIO) -> subprocess.Popen[bytes]:
    environment = inherited(os.environ) | dict(command.environment) | {MARKER: name}
    try:
        # A session of its own: Ctrl-C reaches this program alone, which ends the ranks in order.
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


def _wait(process: subprocess.Popen[bytes] | None, wake: Sequence[int], seconds: float) -> None:
    """Wait until a process ends or one of ``wake`` can be read."""
    with contextlib.ExitStack() as opened:
        events = select.poll()
        for descriptor in wake:
            events.register(descriptor, select.POLLIN)
        if process:
            with contextlib.suppress(OSError):  # a sandbox may forbid it: then the next tick sees the end
                end = os.pidfd_open(process.pid)
                opened.callback(os.close, end)
                events.register(end, select.POLLIN)
        events.poll(seconds * 1000)


def end_all(
    name: str,
    child: subprocess.Popen[bytes] | None = None,
    while_waiting: Callable[[], None] = lambda: None,
) -> None:
    """End every process of a launch on this machine, also by SIGKILL.

    The ranks come first, by their witnesses. At SIGTERM, an Open MPI that aborts already would kill them at
    once, and they would leave no exit record. A second Ctrl-C ends the wait. ``name`` is the launch's folder.
    ``child`` is the launch's process that this one started, and must reap. ``while_waiting`` is called again
    and again until they have exited.
    """
    try:
        _end_with(_terminate, name, while_waiting, only=LaunchFiles(Path(name)).witnesses())
        _end_with(_terminate, name, while_waiting)
    finally:
        with uninterrupted():
            _end_with(_kill_but_trackers, name, while_waiting)
            _end_with(psutil.Process.kill, name, while_waiting)
            if child:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=_GRACE_SECONDS)
            _remove_segments()


def _remove_segments() -> None:
    """Remove this user's segments of MPICH that no process maps.

    A killed rank leaves them, and MPICH offers no folder of their own. A live launch maps its segments.
    """
    segments = {str(path): path for path in _SHARED_MEMORY.glob("mpich_*")}
    for table in Path("/proc").glob("[0-9]*/maps") if segments else ():
        with contextlib.suppress(OSError):  # it has exited, or is another user's
            mapped = table.read_text()
            segments = {name: path for name, path in segments.items() if name not in mapped}
    for path in segments.values():
        with contextlib.suppress(OSError):  # another launch's end removed it, or it is another user's
            path.unlink()


def _terminate(process: psutil.Process) -> None:
    """Send SIGTERM, and wake a stopped process, which would not receive it."""
    process.terminate()
    process.resume()


def _kill_but_trackers(process: psutil.Process) -> None:
    """Kill a process, unless it is Python's tracker of shared memory.

    The tracker removes what killed processes leave, and exits by itself.
    """
    if not any("multiprocessing.resource_tracker" in word for word in process.cmdline()):
        process.kill()


def _end_with(
    end: Callable[[psutil.Process], None],
    name: str,
    while_waiting: Callable[[], None],
    *,
    only: Collection[int] | None = None,
) -> None:
    """End the processes of a launch, or ``only`` those with these PIDs."""
    signalled: set[psutil.Process] = set()
    deadline = time.monotonic() + _GRACE_SECONDS
    # Listed anew each time, because one may have been started meanwhile. In a container, orphans that
    # have exited stay zombies, which are not listed.
    while left := [one for one in descendants(name) if only is None or one.pid in only]:
        for process in left:
            if process not in signalled:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
        signalled.update(left)
        if time.monotonic() > deadline:
            return
        while_waiting()
        time.sleep(_POLL_SECONDS)


def descendants(name: str) -> Iterator[psutil.Process]:
    """Find the live processes of a launch by their mark.

    Process groups or the process tree would not find them all. Launchers put ranks into sessions of
    their own, and orphans change their parent.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == name and process.status() != psutil.STATUS_ZOMBIE:
                yield process
