"""Start a launcher, and leave none of its processes behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import selectors
import subprocess
import time
import uuid
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
_READ_BYTES = 1 << 16
_GRACE_SECONDS = 3.0
"""Maximum time for processes to exit after SIGTERM, and again after SIGKILL."""
_PR_SET_CHILD_SUBREAPER = 36


class Ending(NamedTuple):
    """How a launch ended."""

    status: int | None
    """The exit status of the launcher; None if it was ended, or if there was none."""
    seconds: float = 0.0
    timed_out: bool = False
    abandoned: bool = False
    """Whether agents ended the launch, because the parent sent no messages."""


class Segments(NamedTuple):
    """Shared memory that killed ranks of a launch leave behind."""

    pattern: str
    """Pattern of the names of its files in /dev/shm."""
    since: float
    """Unix time at which the launch started; older files are of other launches."""


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent exits.

    A process that has changed its environment and its session can then still be found.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[psutil.Process]:
    """Return all processes that descend from this one."""
    return set(psutil.Process().children(recursive=True))


def supervise(
    command: Command | None,
    *,
    name: str,
    log: Path,
    on_tick: Callable[[], bool],
    wake: Sequence[int] = (),
    while_waiting: Callable[[], None] = lambda: None,
    segments: Segments | None = None,
) -> Ending:
    """Execute a command until it exits or ``on_tick`` returns False, and return how it ended.

    No process of the launch is left on this machine afterwards. The command gets no shell and no input.
    Without a command, another machine's launcher starts the ranks, and only ``on_tick`` ends them.
    ``name`` marks every process that descends from the launch. ``on_tick`` is called twice a second, and at
    once when one of ``wake`` can be read. It returns whether the launch may go on. Processes may take seconds
    to exit, during which ``while_waiting`` is called. ``segments`` is the shared memory to remove.

    Raises:
        UnavailableError: the command could not be executed.
        OutputError: the log could not be written.
    """
    began, spared = time.monotonic(), children()
    process: subprocess.Popen[bytes] | None = None
    try:
        if command:
            with _open(log) as output:
                process = _start(command, name, output)
        while process is None or process.poll() is None:
            if not on_tick():
                return Ending(None, time.monotonic() - began)
            _wait(process, wake, _TICK_SECONDS)
        return Ending(process.returncode, time.monotonic() - began)
    finally:
        end_all(name, process, while_waiting, spared=spared, segments=segments)


def answer_of(command: Command, *, seconds: float, most_bytes: int) -> tuple[str, str]:
    """Return what a command prints on standard output and on standard error.

    No process that it started is left afterwards. It inherits no variables, but gets those of ``command``.

    Raises:
        OSError: it could not be executed.
        OverflowError: it printed more than ``most_bytes``.
        TimeoutError: it did not end in time.
    """
    name, spared, until = f"ringside-{uuid.uuid4()}", children(), time.monotonic() + seconds
    process = subprocess.Popen(
        command.argv,
        env={**command.environment, MARKER: name},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with process:
            try:
                return _printed_by(process, until, most_bytes)
            finally:
                end_all(name, process, spared=spared)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


def _printed_by(process: subprocess.Popen[bytes], until: float, most_bytes: int) -> tuple[str, str]:
    assert process.stdout is not None  # noqa: S101 -- both are pipes
    assert process.stderr is not None  # noqa: S101
    printed = {process.stdout: b"", process.stderr: b""}
    with selectors.DefaultSelector() as waiting:
        for pipe in printed:
            waiting.register(pipe, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                piece = os.read(key.fd, _READ_BYTES)
                if not piece:
                    waiting.unregister(key.fileobj)
                printed[key.fileobj] += piece  # type: ignore[index]  # only pipes are registered
            if sum(map(len, printed.values())) > most_bytes:
                raise OverflowError
    process.wait(max(0.0, until - time.monotonic()))
    output, errors = (text.decode(errors="replace") for text in printed.values())
    return output, errors


def _open(log: Path) -> BinaryIO:
    try:
        return log.open("wb")
    except OSError as error:
        raise OutputError.unwritten(log, error) from None


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
    """Wait until a process ends or one of ``wake`` can be read, at most for ``seconds``."""
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
    *,
    spared: Collection[psutil.Process] | None = None,
    segments: Segments | None = None,
) -> None:
    """End every process of a launch on this machine, first with SIGTERM and then with SIGKILL.

    The witnesses of the ranks get the first SIGTERM. An Open MPI that aborts already would react to it by
    killing the ranks at once, and they would leave no exit record. A second Ctrl-C ends the wait.
    ``name`` is the launch's folder. ``child`` is the launch's process that this one started and must reap.
    ``while_waiting`` is called again and again until all have exited. Descendants of this process belong to
    the launch too, except the ``spared`` ones; if that is None, no descendant does. Of ``segments``, files
    that no process maps are removed.
    """

    def end_with(end: Callable[[psutil.Process], None], only: Collection[int] | None = None) -> None:
        _end_with(end, name, while_waiting, spared, only)

    try:
        end_with(_terminate, LaunchFiles(Path(name)).witnesses())
        end_with(_terminate)
    finally:
        with uninterrupted():
            end_with(_kill_but_trackers)
            end_with(psutil.Process.kill)
            if child:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=_GRACE_SECONDS)
            _reap(() if spared is None else children() - set(spared))
            if segments:
                _remove_segments(segments)


def _reap(adopted: Collection[psutil.Process]) -> None:
    """Reap the orphans that this process has adopted and that have exited."""
    for process in adopted:
        with contextlib.suppress(ChildProcessError):  # it is a grandchild
            os.waitpid(process.pid, os.WNOHANG)


def _remove_segments(segments: Segments) -> None:
    """Remove this user's segments of a launch that no process maps.

    A killed rank leaves them behind, and MPICH cannot make them in another folder. A live launch maps its
    segments, but its processes are not seen if it is in another container with the same /dev/shm. So segments
    older than this launch are left alone.
    """
    found = {str(path): path for path in _SHARED_MEMORY.glob(segments.pattern) if _is_of(path, segments)}
    for table in Path("/proc").glob("[0-9]*/maps") if found else ():
        with contextlib.suppress(OSError):  # it has exited, or is another user's
            mapped = table.read_text()
            found = {name: path for name, path in found.items() if name not in mapped}
    for path in found.values():
        with contextlib.suppress(OSError):  # another launch's end removed it
            path.unlink()


def _is_of(path: Path, segments: Segments) -> bool:
    try:
        state = path.lstat()
    except OSError:  # another launch's end removed it
        return False
    return state.st_uid == os.geteuid() and state.st_mtime >= segments.since


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
    spared: Collection[psutil.Process] | None,
    only: Collection[int] | None,
) -> None:
    """Apply ``end`` to the processes of a launch until none is left, at most for the grace period.

    If ``only`` is given, it is limited to processes with these PIDs.
    """
    signalled: set[psutil.Process] = set()
    deadline = time.monotonic() + _GRACE_SECONDS
    # Listed anew each time, because one may have been started meanwhile. In a container, orphans that
    # have exited stay zombies, which are not listed.
    while left := {one for one in _all_of(name, spared) if only is None or one.pid in only}:
        for process in left - signalled:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)
        signalled.update(left)
        if time.monotonic() > deadline:
            return
        while_waiting()
        time.sleep(_POLL_SECONDS)


def _all_of(name: str, spared: Collection[psutil.Process] | None) -> Iterator[psutil.Process]:
    """Yield the live processes of a launch, which have its mark or descend from this process."""
    yield from descendants(name)
    for process in () if spared is None else children() - set(spared):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process


def descendants(name: str) -> Iterator[psutil.Process]:
    """Yield the live processes of a launch, which have its mark in their environment.

    Process groups and the process tree would not show them all, because launchers put ranks into sessions of
    their own, and orphans change their parent.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == name and process.status() != psutil.STATUS_ZOMBIE:
                yield process
