"""Execute thousands of processes at the same time.

Each has a time-out, and a limit on its output. An interrupt ends all of them within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NamedTuple, cast

from compare.launch.engines import STREAM_BYTES
from compare.launch.signals import postponed_interrupts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PIECE_BYTES = 1 << 16
_EXIT_SECONDS = 0.5
"""Maximum time for killed processes to exit.

The kernel ends what is left.
"""
_EOF_SECONDS = 0.5
"""Maximum time from an exit to the end of the output.

A background process may keep the pipes open.
"""
_STREAMS = {1: "stdout", 2: "stderr"}


class Outcome(NamedTuple):
    """How a process ended; see ``Answer``."""

    status: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    started_at: float
    flooded: str


def execute(
    commands: Iterable[Sequence[str]], stdin: bytes, timeout_seconds: float, at_once: int
) -> list[Outcome]:
    """Execute commands side by side, each with the same input.

    Args:
        commands: what to execute, without a shell; each is taken when its turn comes.
        stdin: the input of each.
        timeout_seconds: maximum time for each, from its own start.
        at_once: how many may run at the same time.

    Raises:
        KeyboardInterrupt: an interrupt came; no process is left.
    """
    loop = asyncio.new_event_loop()
    if sys.version_info < (3, 12):
        # The default of 3.11 starts a thread for every process.
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
    try:
        work = loop.create_task(_execute(commands, stdin, timeout_seconds, at_once))
        with postponed_interrupts(lambda: loop.call_soon_threadsafe(work.cancel)):
            return loop.run_until_complete(work)
    finally:
        loop.close()


async def _execute(
    commands: Iterable[Sequence[str]], stdin: bytes, timeout_seconds: float, at_once: int
) -> list[Outcome]:
    free = asyncio.Semaphore(at_once)
    processes: list[_Process] = []
    tasks: list[asyncio.Task[Outcome]] = []
    try:
        # One after the other, so that an interrupt comes between two starts.
        for command in commands:
            await free.acquire()
            processes.append(await _start(command, stdin))
            tasks.append(asyncio.create_task(processes[-1].finish(timeout_seconds)))
            tasks[-1].add_done_callback(lambda _: free.release())
        return await asyncio.gather(*tasks)
    except BaseException:
        for process in processes:
            process.kill()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        raise


async def _start(command: Sequence[str], stdin: bytes) -> _Process:
    # A session of its own: Ctrl-C reaches us alone, and a process ends together with its children.
    _, process = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Process(stdin), *command, start_new_session=True
    )
    return process


class _Process(asyncio.SubprocessProtocol):
    """One process: feeds its input, and keeps what it sends."""

    def __init__(self, stdin: bytes) -> None:
        self._unsent = memoryview(stdin)
        self._sent = {number: bytearray() for number in _STREAMS}
        self._flooded = ""
        self._over = asyncio.Event()
        self._exited = asyncio.Event()
        self._started = (time.monotonic(), time.time())
        self._seconds = 0.0
        self._may_write = True

    async def finish(self, timeout_seconds: float) -> Outcome:
        """Wait for the exit; kill the process at its time-out or limit."""
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), timeout_seconds)
            status = None if self._flooded else self._transport.get_returncode()
            seconds = self._seconds or time.monotonic() - self._started[0]
        finally:
            self.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), _EXIT_SECONDS)
            self._transport.close()
            await asyncio.sleep(0)  # its pipes close in the loop's next turn
        return Outcome(
            status,
            bytes(self._sent[1][:STREAM_BYTES]),
            bytes(self._sent[2][:STREAM_BYTES]),
            seconds,
            self._started[1],
            self._flooded,
        )

    def kill(self) -> None:
        """Kill the process and its children, where it has not exited."""
        if self._transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and send the input."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._write()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what came, up to the limit."""
        sent = self._sent[fd]
        if len(sent) <= STREAM_BYTES:
            sent += data
        if len(sent) > STREAM_BYTES and not self._flooded:
            self._flooded = _STREAMS[fd]
            self._over.set()
            self.kill()

    def process_exited(self) -> None:
        """Note the time, and wait for the end of the output."""
        self._seconds = time.monotonic() - self._started[0]
        self._exited.set()
        asyncio.get_running_loop().call_later(_EOF_SECONDS, self._over.set)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the process has exited and its pipes are closed."""
        del exc
        self._over.set()

    def pause_writing(self) -> None:
        """Stop to write: the pipe is full."""
        self._may_write = False

    def resume_writing(self) -> None:
        """Write on."""
        self._may_write = True
        # Not at once: asyncio calls this while it writes, and would close the pipe twice.
        asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        # In pieces: the transport would keep a copy of the whole input for every host.
        pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        while self._may_write and self._unsent and not pipe.is_closing():
            pipe.write(self._unsent[:_PIECE_BYTES])
            self._unsent = self._unsent[_PIECE_BYTES:]
        if not self._unsent:
            pipe.close()
