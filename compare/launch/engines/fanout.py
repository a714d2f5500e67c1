"""Execute commands for hundreds of hosts side by side, and collect their output.

Each has a time-out, and a limit on its output. An interrupt ends all of them within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import cast

from compare.launch.engines import STREAM_BYTES, Answer
from compare.launch.signals import postponed_interrupts
from compare.schema.hosts import Host

_PIECE_BYTES = 1 << 16
_EXIT_SECONDS = 0.5
"""Maximum time to wait until killed processes have exited."""
_EOF_SECONDS = 0.5
"""Maximum time from a process's exit to the end of its output, because a child may keep the pipes open."""
_STREAMS = {1: "stdout", 2: "stderr"}


def execute(
    commands: Iterable[tuple[Host, Sequence[str]]],
    stdin: bytes,
    timeout_seconds: float,
    at_once: int,
    *,
    input_ends: bool = True,
) -> list[Answer]:
    """Execute a command for each host, at most ``at_once`` at a time, and return the answers in order.

    Each command reads ``stdin``, which stays open until the command exits if ``input_ends`` is False.
    ``timeout_seconds`` counts from the start of each command.

    Raises:
        KeyboardInterrupt: an interrupt came, and all processes were killed.
    """
    loop = asyncio.new_event_loop()
    if sys.version_info < (3, 12):
        # The default of 3.11 starts a thread for every process.
        watcher = asyncio.PidfdChildWatcher() if _has_pidfd() else asyncio.ThreadedChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
    try:
        make = partial(_Process, stdin=stdin, timeout_seconds=timeout_seconds, input_ends=input_ends)
        work = loop.create_task(_execute(commands, make, at_once))
        with postponed_interrupts(lambda: loop.call_soon_threadsafe(work.cancel)):
            return loop.run_until_complete(work)
    finally:
        loop.close()


def _has_pidfd() -> bool:
    """Return whether the kernel and the sandbox allow ``pidfd_open``."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


async def _execute(
    commands: Iterable[tuple[Host, Sequence[str]]], make: Callable[[Host], _Process], at_once: int
) -> list[Answer]:
    loop = asyncio.get_running_loop()
    free = asyncio.Semaphore(at_once)
    processes: list[_Process] = []
    try:
        # One after the other, so that an interrupt comes between two starts.
        for host, command in commands:
            await free.acquire()
            # A session of its own: Ctrl-C reaches us alone, and a process ends together with its children.
            _, process = await loop.subprocess_exec(partial(make, host), *command, start_new_session=True)
            process.answer.add_done_callback(lambda _: free.release())
            processes.append(process)
        return await asyncio.gather(*(process.answer for process in processes))
    finally:
        for process in processes:
            process.end()
        if processes:
            await asyncio.wait([process.exited for process in processes], timeout=_EXIT_SECONDS)
            await asyncio.sleep(0)  # their pipes close in the loop's next turn


class _Process(asyncio.SubprocessProtocol):
    """One process, whose input is written and whose output is kept; ``answer`` is set when it ends."""

    def __init__(self, host: Host, *, stdin: bytes, timeout_seconds: float, input_ends: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Answer] = self._loop.create_future()
        self._host = host
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self._timeout_seconds = timeout_seconds
        self._unsent = memoryview(stdin)
        self._input_ends = input_ends
        self._may_write = True
        self._sent = {number: bytearray() for number in _STREAMS}
        self._flooded = ""
        self._started = (time.monotonic(), time.time())
        self._seconds: float | None = None

    def end(self) -> None:
        """Kill the process and its children; if it has exited already, close its pipes."""
        if self.exited.done():
            self._transport.close()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the input, and start the time-out."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._loop.call_later(self._timeout_seconds, self._finish)
        self._write()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the output, and end a process that sends more than ``STREAM_BYTES`` on one stream."""
        sent = self._sent[fd]
        sent += data[: STREAM_BYTES + 1 - len(sent)]
        if len(sent) > STREAM_BYTES:
            self._flooded = self._flooded or _STREAMS[fd]
            self._finish()

    def process_exited(self) -> None:
        """Note the time of the exit, and wait half a second at most for the end of the output."""
        self.exited.set_result(None)
        if self.answer.done():
            # Not earlier: closing reaps the process, and asyncio would log that it is gone.
            self._transport.close()
            return
        self._seconds = time.monotonic() - self._started[0]
        self._loop.call_later(_EOF_SECONDS, self._finish)

    def connection_lost(self, exc: Exception | None) -> None:
        """Set the answer, because the process has exited and its pipes are closed."""
        del exc
        self._finish()

    def pause_writing(self) -> None:
        """Stop writing the input, because the pipe is full."""
        self._may_write = False

    def resume_writing(self) -> None:
        """Continue to write the input, because there is room in the pipe again."""
        self._may_write = True
        # Not at once: asyncio calls this while it writes, and would close the pipe twice.
        self._loop.call_soon(self._write)

    def _write(self) -> None:
        # In pieces: the transport would keep a copy of the whole input for every host.
        pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        while self._may_write and self._unsent and not pipe.is_closing():
            pipe.write(self._unsent[:_PIECE_BYTES])
            self._unsent = self._unsent[_PIECE_BYTES:]
        if self._input_ends and not self._unsent:
            pipe.close()

    def _finish(self) -> None:
        if self.answer.done():
            return
        seconds = time.monotonic() - self._started[0] if self._seconds is None else self._seconds
        out, err = (bytes(sent[:STREAM_BYTES]) for sent in self._sent.values())
        status = None if self._flooded else self._transport.get_returncode()
        self.answer.set_result(Answer(self._host, status, out, err, seconds, self._started[1], self._flooded))
        self.end()
