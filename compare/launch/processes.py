"""Start the launcher of a launch, and leave none of its processes behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from backends.launchers.request import MARKER, Command
from compare.errors import OutputError, UnavailableError
from compare.launch.signals import uninterrupted
from compare.schema.environment import inherited_variables
from compare.schema.launch_files import LaunchFiles

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- where MPICH makes its segments
_TICK_SECONDS = 0.5
"""Time between two calls of ``on_tick``, because each takes time from a rank."""
_POLL_SECONDS = 0.05
"""Time between two looks for processes that have not exited yet."""
_GRACE_SECONDS = 3.0
"""Maximum time for processes to exit after SIGTERM, and again after SIGKILL."""
_PR_SET_CHILD_SUBREAPER = 36


class Segments(NamedTuple):
    """The files in /dev/shm that killed ranks of a launch leave behind as shared memory."""

    pattern: str
    """Pattern of the files' names."""
    since: float
    """Unix time shortly before the launch started; older files belong to other launches."""


def adopt_orphans() -> None:
    """Let this process become the parent of each descendant whose own parent exits.

    So a process that has changed its environment and its session can still be found.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def own_descendants() -> set[psutil.Process]:
    """Return the children of this process, their children, and so on."""
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
) -> int | None:
    """Execute a launcher until it exits or ``on_tick`` returns False, and return its exit status.

    No process of the launch is left on this machine afterwards. The status is None if the command was ended,
    or if there was none.

    Args:
        command: the launcher's command, which gets no shell and no input. Without one, the launcher of
            another machine starts the ranks here, and only ``on_tick`` ends them.
        name: the launch's name, which every process of the launch has in its environment.
        log: the file that receives what the command prints.
        on_tick: returns whether the launch may go on. It is called at least twice a second.
        wake: file descriptors; when one of them can be read, ``on_tick`` is called at once.
        while_waiting: is called again and again while processes exit, which may take seconds.
        segments: the shared memory to remove.

    Raises:
        UnavailableError: the command could not be executed.
        OutputError: the log could not be written.
    """
    spared = own_descendants()
    process: subprocess.Popen[bytes] | None = None
    try:
        if command:
            process = _start(command, name, log)
        while process is None or process.poll() is None:
            if not on_tick():
                return None
            _wait(process, wake, _TICK_SECONDS)
        return process.returncode
    finally:
        end_all(name, process, while_waiting, spared=spared, segments=segments)


def _start(command: Command, name: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a launcher's command; see ``supervise`` for the arguments and the errors."""
    try:
        output = log.open("wb")
    except OSError as error:
        raise OutputError.unwritten(log, error) from None
    try:
        with output:
            # A session of its own: Ctrl-C reaches this program alone, which ends the ranks in order.
            return subprocess.Popen(
                command.argv,
                env=inherited_variables(os.environ) | dict(command.environment) | {MARKER: name},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise UnavailableError.unexecuted(command.argv[0], error) from None


def _wait(process: subprocess.Popen[bytes] | None, wake: Sequence[int], seconds: float) -> None:
    """Wait at most ``seconds`` until a process exits or one of the descriptors in ``wake`` can be read."""
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

    The witnesses, which are the parents of the ranks, get the first SIGTERM. An Open MPI that aborts already
    would react to it by killing the ranks at once, and they would leave no exit record. A second Ctrl-C ends
    the wait.

    Args:
        name: the launch's name, which is the path of its folder.
        child: the process of the launch that this one started and must reap, if there is one.
        while_waiting: is called again and again until all processes have exited.
        spared: descendants of this process that do not belong to the launch, while all others do. With None,
            a descendant belongs to it only if it has the launch's name.
        segments: the shared memory of the launch. Files of it that no process maps are removed.
    """

    def end_with(end: Callable[[psutil.Process], None], only: Collection[int] | None = None) -> None:
        """Apply ``end`` to all processes, or those with the PIDs in ``only``; wait for them to exit."""
        signalled: set[psutil.Process] = set()
        deadline = time.monotonic() + _GRACE_SECONDS
        # Listed anew each time, because one may have been started meanwhile. In a container, orphans that
        # have exited stay zombies, which are not listed.
        while left := {each for each in launch_processes(name, spared) if only is None or each.pid in only}:
            for process in left - signalled:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
            signalled.update(left)
            if time.monotonic() > deadline:
                return
            while_waiting()
            time.sleep(_POLL_SECONDS)

    try:
        end_with(_terminate, LaunchFiles(Path(name)).witnesses())
        end_with(_terminate)
    finally:
        with uninterrupted():
            end_with(_kill_unless_tracker)
            end_with(psutil.Process.kill)
            if child:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=_GRACE_SECONDS)
            for orphan in () if spared is None else own_descendants() - set(spared):
                with contextlib.suppress(ChildProcessError):  # it is a grandchild
                    os.waitpid(orphan.pid, os.WNOHANG)
            if segments:
                _remove_segments(segments)


def _remove_segments(segments: Segments) -> None:
    """Remove those segments of a launch that belong to this user, and that no process maps.

    A killed rank leaves them behind, and MPICH cannot make them in another folder. Other launches map their
    segments, but their processes are not seen from here if they are in another container with the same
    /dev/shm. So segments that are older than this launch are left alone.
    """
    unmapped = {}
    for path in _SHARED_MEMORY.glob(segments.pattern):
        with contextlib.suppress(OSError):  # another launch's end removed it
            state = path.lstat()
            if state.st_uid == os.geteuid() and state.st_mtime >= segments.since:
                unmapped[str(path)] = path
    for table in Path("/proc").glob("[0-9]*/maps") if unmapped else ():
        with contextlib.suppress(OSError):  # it has exited, or is another user's
            mapped = table.read_text()
            unmapped = {name: path for name, path in unmapped.items() if name not in mapped}
    for path in unmapped.values():
        with contextlib.suppress(OSError):  # another launch's end removed it
            path.unlink()


def _terminate(process: psutil.Process) -> None:
    """Send SIGTERM to a process, and continue it, because a stopped process would not react."""
    process.terminate()
    process.resume()


def _kill_unless_tracker(process: psutil.Process) -> None:
    """Kill a process, unless it is Python's tracker of shared memory.

    The tracker removes the shared memory that killed processes leave, and exits by itself.
    """
    if not any("multiprocessing.resource_tracker" in word for word in process.cmdline()):
        process.kill()


def launch_processes(name: str, spared: Collection[psutil.Process] | None = None) -> Iterator[psutil.Process]:
    """Yield the live processes of a launch, which have its ``name`` in their environment.

    Process groups and the process tree would not show them all, because launchers put ranks into sessions of
    their own, and orphans change their parent. If ``spared`` is given, the descendants of this process are
    yielded too, except those.
    """
    other_descendants = set() if spared is None else own_descendants() - set(spared)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            of_launch = process in other_descendants or process.environ().get(MARKER) == name
            if of_launch and process.status() != psutil.STATUS_ZOMBIE:
                yield process
