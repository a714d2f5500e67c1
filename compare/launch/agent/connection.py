"""Connect to the agent of a host, and mirror the files of its launches.

A connection lasts as long as a run, with any number of launches in it. No method waits for an answer.
Instead, ``exchange_until`` calls ``receive`` for hosts that sent something, and attributes show the changes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO, cast

from compare import __version__
from compare.errors import HostError, InterleaveError, OutputError, RingsideError, UnavailableError
from compare.launch.agent.mirror import ReceivedFiles
from compare.launch.agent.protocol import (
    Alive,
    End,
    Exited,
    FileData,
    FindPort,
    Go,
    LaunchMessage,
    Message,
    MessagePipe,
    OfLaunch,
    Port,
    ProtocolError,
    RankNews,
    Ready,
    Refused,
    Start,
    Started,
    Waiting,
)
from compare.launch.engines import Answer, Carrier
from compare.launch.engines.commands import host_error, python_command
from compare.schema.hosts import Host
from compare.schema.launch_files import LaunchFiles
from compare.schema.turns import Arrival, Turn

ANSWER_SECONDS = 20.0
"""Maximum time for an agent to answer."""
START_SECONDS = 60.0
"""Maximum time for an agent's first message, as its Python may be on a slow disk."""

SILENT_SECONDS = 10.0
"""Maximum time without a message from an agent.

The program that reaches the host gives up a dead link earlier, and its error says more.
"""

_STATUS_SECONDS = 1.0
"""Maximum time from a closed pipe to the exit of its process."""
_STDERR_BYTES = 1 << 16
_STDERR_READS = 8


class LaunchLink:
    """One launch on one host, as the parent sees it; ``on_news`` receives the news of its ranks."""

    def __init__(
        self, name: str, agent: Connection, ranks: Sequence[int], on_news: Callable[[RankNews], None]
    ) -> None:
        self.agent = agent
        """The connection to the host's agent."""
        self.ranks = ranks
        """The numbers of the ranks on the host."""
        self.order: Start | None = None
        """The order to start the launch, once it was sent to the host; None before."""
        self.started = False
        """Whether the host has made the files and folders of the launch."""
        self.exited: Exited | None = None
        """How the launch ended on this host; None before its end."""
        self.arrivals: list[Arrival] = []
        """What the host's ranks reported when they began to wait for a turn; empty until all of them do."""
        self.memory_left_bytes = 0
        """Memory that was left on the host when its ranks last began to wait."""
        self.error: RingsideError | None = None
        """The error with which the launch failed on the host; None without one, or after it was raised."""
        self._name = name
        self._on_news = on_news
        self._received: ReceivedFiles | None = None

    def start(self, order: Start, files: LaunchFiles | None) -> None:
        """Send the order to start the launch on the host.

        What the agent sends of the launch's files is written to ``files``, which is None if the agent works
        in the run's own folder.
        """
        self._received = ReceivedFiles(self.agent.host, files, self.ranks) if files else None
        self.order = order
        self._send(order)

    def go(self, turn: Turn) -> None:
        """Send the waiting ranks of the host their turn."""
        self.arrivals = []
        self._send(Go(turn))

    def end(self) -> None:
        """Ask the agent to end the launch; ``exited`` is set when it has."""
        self._send(End())

    def handle(self, message: LaunchMessage) -> None:
        """Update the attributes from a message of the launch, or write the file that it carries.

        Raises:
            HostError: the host sends too much.
            OutputError: a file cannot be written.
            ProtocolError: no agent sends such a message or file.
        """
        match message:
            case RankNews():
                if not {*message.progress, *message.done, *message.failed}.issubset(self.ranks):
                    raise ProtocolError("It sent news of ranks that run on other hosts.")
                if self._received:
                    self._received.write_progress(message.progress)
                self._on_news(message)
            case FileData() if self._received:
                self._received.write(message)
            case Started():
                self.started = True
            case Waiting(arrivals, memory_left_bytes):
                self.arrivals, self.memory_left_bytes = arrivals, memory_left_bytes
            case Exited():
                self.exited = message
            case Refused():
                # The launch is over on this host, and the agent can carry out another.
                self.error, self.exited = self._error_of(message), Exited(status=None)
            case _:
                raise ProtocolError(f"It sent an unexpected message: {type(message).__name__}.")

    def _send(self, message: LaunchMessage) -> None:
        self.agent.pipe.send(OfLaunch(self._name, message))

    def _error_of(self, refused: Refused) -> RingsideError:
        """Return the error that a refusal reports.

        If the agent does not work in the run's own folder, any error but an ``InterleaveError`` becomes a
        ``HostError`` with the host's name.
        """
        kinds = (OutputError, UnavailableError, InterleaveError)
        error_class = {kind.__name__: kind for kind in kinds}.get(refused.kind)
        if error_class and (self._received is None or error_class is InterleaveError):
            return error_class(refused.what, found=refused.found, remedy=refused.remedy)
        name = self.agent.host.name
        return HostError(f"Host {name}: {refused.what}", found=refused.found, remedy=refused.remedy)


class Connection:
    """The connection to the agent on one host; the constructor starts the agent."""

    def __init__(self, host: Host, carrier: Carrier) -> None:
        self.host = host
        self.ready: Ready | None = None
        """The agent's first message; None before."""
        self.port: int | None = None
        """The answer to ``find_port``; None before."""
        self.launches: dict[str, LaunchLink] = {}
        """The launches on this host, by their names."""
        self._ahead_seconds: float | None = None
        self._carrier = carrier
        self._stderr = bytearray()
        argv = python_command(sys.executable, "-m", "compare.launch.agent")
        command = carrier.argv(host, argv)
        self._is_here = command == argv
        # A session of its own: Ctrl-C reaches this program alone, which ends the launch in order.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ,
            start_new_session=True,
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._errors = cast("tuple[IO[bytes], IO[bytes], IO[bytes]]", pipes)
        os.set_blocking(self._errors.fileno(), False)
        self.pipe = MessagePipe(self._stdout.fileno(), self._stdin.fileno())
        """The pipe of messages to and from the agent."""

    @property
    def clock_ahead_seconds(self) -> float:
        """Seconds by which the host's clock is ahead of this one's; 0 before the first keep-alive message."""
        return self._ahead_seconds or 0.0

    def launch(self, name: str, ranks: Sequence[int], on_news: Callable[[RankNews], None]) -> LaunchLink:
        """Add a launch with these ranks on the host, and return it without starting it.

        ``name`` is the path of the launch's folder, which is also its name in messages. ``on_news`` receives
        the news of the ranks.
        """
        self.launches[name] = LaunchLink(name, self, ranks, on_news)
        return self.launches[name]

    def find_port(self) -> None:
        """Ask for a free port on the host; ``port`` is set when the answer comes."""
        self.port = None
        self.pipe.send(FindPort())

    def receive(self) -> bool:
        """Handle the messages that have arrived, and return whether one of them may end a wait.

        Files and news of ranks arrive all the time, and end none.

        Raises:
            HostError: the host is lost, has another version, or sends something that is not a message.
            OutputError: a file that the host sent cannot be written.
        """
        ends_wait = False
        try:
            for message in self.pipe.receive():
                self._handle(message)
                ends_wait = ends_wait or not _is_routine(message)
        except ProtocolError as error:
            raise HostError(
                f"Host {self.host.name}: what it sent does not come from Ringside's agent.",
                found=str(error),
                remedy="Is the same version of Ringside installed there? Does the login shell print text?",
            ) from None
        if self.pipe.closed:
            self._require_alive()
        return ends_wait

    def attend(self) -> bool:
        """Look whether the host is lost, and do what is due every second; return as ``receive`` does.

        What is due is to send a keep-alive message, and to read what the agent printed.

        Raises:
            RingsideError: the host is lost, or the same errors as those of ``receive``.
        """
        if self.pipe.alive_is_due:
            self.pipe.keep_alive()
            self._read_stderr()
        # A silent host is lost, unless this program was suspended, or busy with other hosts.
        ends_wait = self.pipe.silent_seconds > SILENT_SECONDS and self.receive()
        self._require_alive()
        return ends_wait

    def hang_up(self) -> None:
        """Close the pipes, so that the agent ends its launches and exits; kill it if it never answered."""
        if self.ready is None:
            self._kill()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    def wait_closed(self, seconds: float) -> None:
        """Wait until the process that reaches the host exits, and kill it after ``seconds``."""
        try:
            self._process.wait(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._errors.close()

    def _kill(self) -> None:
        """Kill the process that reaches the host, with its children."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _handle(self, message: Message) -> None:
        """Update the attributes from a message, or pass it on to its launch; for errors see ``receive``."""
        match message:
            case Ready():
                self.ready = message
                if message.version != __version__:
                    raise HostError(
                        f"Host {self.host.name} has another version of Ringside.",
                        found=f"{message.version} there, {__version__} here.",
                        remedy="Install the same version on every host.",
                    )
            case Alive(at):
                ahead, known = at - time.time(), self._ahead_seconds
                # The fastest message shows the difference best.
                self._ahead_seconds = ahead if known is None else max(ahead, known)
            case Port(number):
                self.port = number
            case OfLaunch(name, of_launch):
                if name in self.launches:  # otherwise it has been given up
                    self.launches[name].handle(of_launch)
            case _:
                raise ProtocolError(f"It sent an unexpected message: {type(message).__name__}.")

    def _require_alive(self) -> None:
        """Raise a ``HostError`` if the connection was closed, or the agent sent nothing for too long.

        No error is raised if the agent ended a launch because this program had sent it nothing.
        """
        limit = SILENT_SECONDS if self.ready else START_SECONDS
        if not self.pipe.closed and self.pipe.silent_seconds <= limit:
            return
        if any(link.exited and link.exited.abandoned for link in self.launches.values()):
            return
        if self.pipe.closed:
            # Its status follows at once, unless the process was stopped.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STATUS_SECONDS)
            raise self._lost(self._process.returncode)
        raise self._lost(None)

    def _read_stderr(self) -> None:
        """Read the agent's standard error, and keep its last 64 KiB."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_STDERR_READS):
                piece = os.read(self._errors.fileno(), _STDERR_BYTES)
                if not piece:
                    return
                self._stderr += piece
                del self._stderr[:-_STDERR_BYTES]

    def _lost(self, status: int | None) -> HostError:
        """Return the error of a lost connection; ``status`` is its process's exit status, None if it runs."""
        self._read_stderr()
        silent = self.pipe.silent_seconds
        answer = Answer(self.host, status, b"", bytes(self._stderr), silent, ran_here=self._is_here)
        return host_error(answer, self._carrier) or HostError(
            f"Host {self.host.name}: the agent exited.",
            found=answer.last_lines,
            remedy="Was that host or this machine suspended? Run again without suspending either.",
        )


def _is_routine(message: Message) -> bool:
    """Return whether a message arrives all the time, and ends no wait."""
    return isinstance(message, Alive) or (
        isinstance(message, OfLaunch) and isinstance(message.message, FileData | RankNews)
    )
