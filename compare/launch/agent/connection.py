"""The parent's end of the connection to one host: starts the agent there and mirrors what it sends.

A link is kept for a whole run; launches follow each other on it. Nothing here waits: call ``tick`` often,
for every host in turn, and look at what has become of it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from compare import __version__
from compare.errors import HostError, OutputError, RingsideError, UnavailableError, system_reason
from compare.launch.agent.protocol import (
    ALIVE_SECONDS,
    Alive,
    Begin,
    Begun,
    Channel,
    ChannelError,
    End,
    Ended,
    FindPort,
    Piece,
    Port,
    Ready,
    Refused,
    Whole,
)
from compare.launch.engines import Answer
from compare.launch.engines.commands import enough_files, host_error, python_command
from compare.launch.signals import postponed_interrupts
from compare.schema.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from compare.launch.agent.protocol import Message
    from compare.launch.engines import Carrier
    from compare.schema.hosts import Host
    from compare.schema.launch_files import LaunchFiles

START_SECONDS = 60.0
"""Maximum time for an agent's first message.

The carrier may fail earlier; Python may be on a slow disk.
"""

SILENT_SECONDS = 10.0
"""Maximum time without a message from an agent.

The carrier gives up a dead link earlier, because its error says why.
"""

_CLOSE_SECONDS = 3.0
_STDERR_BYTES = 1 << 16
_STDERR_READS = 8


class Link:
    """The connection to the agent on one host; a context manager.

    Args:
        host: where the agent runs.
        python: the interpreter there.
        carrier: how the host is reached.
    """

    def __init__(self, host: Host, *, python: str, carrier: Carrier) -> None:
        self.host = host
        self.ready: Ready | None = None
        """What the agent is; None until it has said its first word."""
        self.begun = False
        """Whether the files of the launch are there, so that its ranks may start."""
        self.port: int | None = None
        """The answer to ``find_port``."""
        self.ended: Ended | None = None
        """How the launch ended here; None while it has not."""
        self._refused: RingsideError | None = None
        self._files: LaunchFiles | None = None
        self._ahead_seconds: float | None = None
        self._carrier = carrier
        self._stderr = bytearray()
        # A session of its own: Ctrl-C reaches us alone, and we end the launch in good order.
        self._process = subprocess.Popen(
            carrier.argv(host, python_command(python, "compare.launch.agent")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None  # noqa: S101 -- both are pipes
        assert self._process.stdout is not None  # noqa: S101
        assert self._process.stderr is not None  # noqa: S101
        os.set_blocking(self._process.stderr.fileno(), False)
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())

    def __enter__(self) -> Self:
        """Nothing more is needed: the agent was started when this was made."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """End it."""
        self.close()

    @property
    def clock_ahead_seconds(self) -> float:
        """How far the host's clock is ahead of this one, less the time that the quickest message took."""
        return self._ahead_seconds or 0.0

    def begin(self, launch: Begin, files: LaunchFiles | None) -> None:
        """Begin a launch on the host.

        Args:
            launch: what to do there.
            files: where its files are mirrored here; None where the agent works in the run's own folder.
                The launcher's log takes the host's name, because every host has one.
        """
        self.ended, self._refused, self._files = None, None, files
        self.begun = False
        self._channel.send(launch)

    def find_port(self) -> None:
        """Ask for a port that is free on the host; ``port`` tells it."""
        self.port = None
        self._channel.send(FindPort())

    def end(self) -> None:
        """Ask for the launch to be ended; ``ended`` tells when it has been."""
        self._channel.send(End())

    def tick(self) -> None:
        """Take what has come, and give a sign of life.

        Raises:
            HostError: the host cannot be reached, is silent, or could not begin.
            OutputError: what it sent cannot be written here.
        """
        try:
            for message in self._channel.receive():
                self._take(message)
        except ChannelError as error:
            raise HostError(
                f"Host {self.host.name} does not speak as an agent does.",
                found=str(error),
                remedy="Is Ringside there in the same version, and is the login shell quiet?",
            ) from None
        self._channel.keep_alive()
        self._read_stderr()
        if self._refused:
            raise self._refused
        self._require_alive()

    def waits_for(self) -> list[tuple[int, int]]:
        """Return the descriptors, each with its event of ``poll``, on which ``tick`` has something to do."""
        return self._channel.waits_for()

    def hang_up(self) -> None:
        """Close the connection; the agent then ends what still runs there, and itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def kill(self) -> None:
        """End the process that reaches the host, with its children."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection and wait for its process; see ``close_all`` for many."""
        close_all([self])

    def wait_closed(self, seconds: float) -> None:
        """Wait for the process of the connection, and kill it after so long."""
        try:
            self._process.wait(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _take(self, message: Message) -> None:
        match message:
            case Ready():
                self.ready = message
                if message.version != __version__:
                    self._refused = HostError(
                        f"Host {self.host.name} has another version of Ringside.",
                        found=f"{message.version} there, {__version__} here.",
                        remedy="Install the same version on every host.",
                    )
            case Alive(at):
                ahead = at - time.time()
                # The message that was quickest on its way tells most.
                self._ahead_seconds = max(
                    ahead, ahead if self._ahead_seconds is None else self._ahead_seconds
                )
            case Piece() | Whole():
                self._write(message)
            case Begun():
                self.begun = True
            case Port(number):
                self.port = number
            case Ended():
                self.ended = message
            case Refused():
                self._refused = self._error_of(message)
            case _:
                raise ChannelError(f"unexpected: {type(message).__name__}")

    def _error_of(self, refused: Refused) -> RingsideError:
        """Return an agent's error: on this machine as it is, elsewhere as the host's."""
        own = {kind.__name__: kind for kind in (OutputError, UnavailableError)}.get(refused.kind)
        if own and self._files is None:
            return own(refused.what, found=refused.found, remedy=refused.remedy)
        return HostError(f"Host {self.host.name}: {refused.what}", found=refused.found, remedy=refused.remedy)

    def _write(self, message: Piece | Whole) -> None:
        # Whatever the host sends, it is written nowhere else.
        if self._files is None or Path(message.name).name != message.name or message.name[:1] in {"", "."}:
            raise ChannelError(f"unexpected file: {message.name}")
        path = self._files.directory / self._name_here(message.name, self._files)
        if isinstance(message, Whole):
            write_text(path, message.data.decode())
        else:
            _write_at(path, message.offset, message.data)

    def _name_here(self, name: str, files: LaunchFiles) -> str:
        log = files.launcher_log
        return f"{log.stem}-{self.host.name}{log.suffix}" if name == log.name else name

    def _require_alive(self) -> None:
        if self._channel.closed:
            # Its status follows at once, unless the process was stopped.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_CLOSE_SECONDS)
            raise self._lost(self._process.returncode)
        patience = SILENT_SECONDS if self.ready else START_SECONDS
        if self._channel.silent_seconds > patience:
            raise self._lost(None)

    def _read_stderr(self) -> None:
        """Keep the end of what the host prints; one that floods waits for the next turn."""
        assert self._process.stderr is not None  # noqa: S101 -- it is a pipe
        with contextlib.suppress(BlockingIOError):
            for _ in range(_STDERR_READS):
                piece = os.read(self._process.stderr.fileno(), _STDERR_BYTES)
                if not piece:
                    return
                self._stderr += piece
                del self._stderr[:-_STDERR_BYTES]

    def _lost(self, status: int | None) -> HostError:
        """Return why the connection is lost; ``status`` is its process's, where it has exited."""
        self._read_stderr()
        stderr = bytes(self._stderr)
        silent = self._channel.silent_seconds
        error = host_error(Answer(self.host, status, b"", stderr, silent), self._carrier)
        return error or HostError(
            f"Host {self.host.name}: the agent ended by itself.",
            found=stderr.decode(errors="replace").strip(),
            remedy="Was this program suspended (Ctrl-Z), or the machine? Run again, and let it run.",
        )


@contextmanager
def linked(hosts: Sequence[Host], *, python: str, carrier: Carrier) -> Iterator[list[Link]]:
    """Link to all hosts at once for as long as the block lasts; a host that fails is told by ``tick``."""
    with enough_files(len(hosts)):
        links: list[Link] = []
        try:
            for host in hosts:
                with postponed_interrupts():  # or a process just started would be left
                    links.append(Link(host, python=python, carrier=carrier))
            yield links
        finally:
            close_all(links)


def attend(
    links: Sequence[Link],
    until: Callable[[], bool],
    seconds: float,
    *,
    lost: dict[Link, RingsideError] | None = None,
) -> bool:
    """Exchange messages with all agents until a condition holds, at most for ``seconds``.

    Args:
        links: to the agents.
        until: the condition; checked after every message.
        seconds: maximum time.
        lost: where given, an agent's error is put here, and the others are attended to further.

    Returns:
        Whether the condition holds.

    Raises:
        HostError: a host is lost, or could not begin; not where ``lost`` is given.
        OutputError: what a host sent cannot be written here; likewise.
    """
    deadline = time.monotonic() + seconds
    lost, raises = ({}, True) if lost is None else (lost, False)
    attended_at = -ALIVE_SECONDS
    ready: Sequence[Link] = ()
    while True:
        now = time.monotonic()
        if now - attended_at >= ALIVE_SECONDS:
            attended_at, ready = now, links
        for link in [link for link in ready if link not in lost]:
            try:
                link.tick()
            except RingsideError as error:
                if raises:
                    raise
                lost[link] = error
        if until():
            return True
        if now >= deadline:
            return False
        wait = min(deadline, attended_at + ALIVE_SECONDS) - time.monotonic()
        ready = _readable([link for link in links if link not in lost], max(0.0, wait))


def _readable(links: Sequence[Link], seconds: float) -> list[Link]:
    """Wait until an agent sends something, or takes what is still to be sent; return those that do."""
    # Not select(): it takes no descriptor above 1023, and five hundred hosts need more.
    poll, by_descriptor = select.poll(), {}
    for link in links:
        for descriptor, event in link.waits_for():
            by_descriptor[descriptor] = link
            poll.register(descriptor, event)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(seconds * 1000)]


def close_all(links: Sequence[Link]) -> None:
    """Hang up on all hosts, then wait for all: behind dead links together no longer than behind one."""
    for link in links:
        link.hang_up()
    for link in links:
        if link.ready is None:
            link.kill()  # nothing runs there yet, and a host that does not answer would be waited for
    deadline = time.monotonic() + _CLOSE_SECONDS
    for link in links:
        link.wait_closed(deadline - time.monotonic())


def _write_at(path: Path, offset: int, data: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            while data:
                written = os.pwrite(handle, data, offset)
                offset, data = offset + written, data[written:]
        finally:
            os.close(handle)
    except OSError as error:
        raise OutputError(
            f"{path} could not be written.",
            found=system_reason(error),
            remedy="Free some space or choose another folder with --output.",
        ) from None
