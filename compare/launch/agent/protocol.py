"""Exchange messages between the parent and an agent over two pipes.

Each message is MessagePack, preceded by four bytes with its length. Neither end ever blocks, because a pipe
to a host behind a failed link fills up, and a process that waited for room in it could not end a launch.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable, Iterator
from typing import Self

import msgspec

from compare.schema.job import Progress
from compare.schema.turns import Arrival, Turn

ALIVE_SECONDS = 1.0
"""Time between two keep-alive messages, which both ends send."""
BACKLOG_BYTES = 1 << 20
"""Size of unsent messages at which nothing more is read to be sent, so that memory does not fill up."""

_PREAMBLE = b"\0RINGSIDE 1\n"
"""The bytes that precede the first message, because a login shell may print something before it."""
_PREAMBLE_BYTES = 1 << 20
"""Maximum size of what a login shell may print."""
_MESSAGE_BYTES = 1 << 26
"""Maximum size of a message."""
_READ_BYTES = 1 << 18
"""Maximum size of what is read at once."""


class ProtocolError(Exception):
    """The other end sent something that is not a message, or a message that does not belong there."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message of an agent, which describes its machine."""

    hostname: str
    version: str
    addresses: dict[str, list[str]] = {}
    """IPv4 addresses with prefix lengths, as 10.0.0.2/24, by the names of interfaces that are up."""
    cpus: list[int] = []
    """Numbers of the CPUs that a launch may use."""
    core_quota: float | None = None
    """Number of cores that the control groups allow, perhaps a fraction; None without a limit."""
    gpus: int = 0
    """Number of NVIDIA GPUs that the driver and CUDA_VISIBLE_DEVICES show."""
    memory_left_bytes: int
    """Memory that processes could still take on the machine when the agent started."""
    cannot_compile: str = ""
    """What torch.compile lacks on the machine, as a clause; empty if it can compile."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a launch on this host.

    The message travels through a pipe and not on a command line, so it may hold secrets.
    """

    directory: str
    """The launch's folder on the host.

    Its path is also the name of the launch, with which all its processes are marked.
    """
    in_place: bool = False
    """Whether ``directory`` is the run's own folder, on the parent's machine.

    If so, no file is sent back. If not, the agent makes the folder on the host's disk, sends the files in it
    to the parent, and removes it afterwards.
    """
    files: dict[str, bytes]
    """Contents of private files, by their names in ``directory`` or their absolute paths."""
    programs: dict[str, bytes] = {}
    """Contents of executable files, by their absolute paths."""
    folders: tuple[str, ...] = ()
    """Scratch folders to make, and to remove after the launch."""
    argv: tuple[str, ...] = ()
    """The launcher's command line; empty if another host starts the launcher."""
    environment: dict[str, str] = {}
    """Variables for the launcher, which override those that it inherits on the host."""
    ranks: int = 0
    """Number of ranks on this host."""
    turns: str = ""
    """Folder for the pipes on which ranks wait for their turns, one of ``folders``; empty without turns."""
    stops: bool = False
    """Whether waiting ranks are stopped (SIGSTOP), because threads of their library would run on."""
    segments: str = ""
    """Pattern of the files that killed ranks may leave in /dev/shm; empty if they leave none."""


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A keep-alive message, which either end sends."""

    at: float
    """Unix time by the sender's clock, which may be wrong."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """The files and folders of the launch were made, and its launcher starts next."""


class FindPort(msgspec.Struct, frozen=True, tag=True):
    """Ask an agent for a free port; the answer is ``Port``."""


class Port(msgspec.Struct, frozen=True, tag=True):
    """The answer to ``FindPort``: a port that is free on every address of the host."""

    number: int


class End(msgspec.Struct, frozen=True, tag=True):
    """Ask an agent to end the launch; the answer is ``Exited``."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """Give the waiting ranks of the launch their turn."""

    turn: Turn


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """All ranks of this host wait for their next turn."""

    arrivals: list[Arrival]
    """What each rank reported when it began to wait, in the order in which they came."""
    memory_left_bytes: int
    """Memory that further processes may take on this host."""


class RankNews(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What is new of the launch's ranks on this host since the last such message."""

    progress: dict[int, Progress] = {}
    """The latest progress record of each rank that wrote one, by the rank's number."""
    done: list[int] = []
    """Ranks that have written their results."""
    failed: list[int] = []
    """Ranks that exited without a result, and not because their witness ended them."""


class FileData(msgspec.Struct, frozen=True, tag=True):
    """A piece of a file in the launch's folder, or its whole content."""

    name: str
    data: bytes
    offset: int | None = None
    """Position of the piece in the file, in bytes; None for the whole content, which replaces the file."""


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No process of the launch is left on this host, and all its files were sent."""

    status: int | None
    """Exit status of the launcher; None if it was ended, or if another host started it."""
    abandoned: bool = False
    """Whether the launch was ended because the parent sent no messages."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The launch could not start on this host, or was ended there, for the reason of this error."""

    kind: str
    """Name of the error's class."""
    what: str
    found: str
    remedy: str = ""


LaunchMessage = Start | Started | Go | Waiting | End | RankNews | FileData | Exited | Refused
"""A message to or from one launch."""


class OfLaunch(msgspec.Struct, frozen=True, tag=True):
    """A message to or from one of the launches on a host, with the name of that launch."""

    launch: str
    """The name of the launch, which is the path of its folder on the host."""
    message: LaunchMessage


Message = Ready | OfLaunch | FindPort | Port | Alive | LaunchMessage

_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class MessagePipe:
    """One end of a pair of pipes: it sends messages into one and receives them from the other.

    ``read`` and ``write`` are the file descriptors of the pipes, which are set to never block.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write
        self._received = bytearray()
        self._preamble_seen = False
        self._to_send = bytearray(_PREAMBLE)
        self.closed = False
        """Whether the other end has closed its pipe."""
        self.received_at = time.monotonic()
        """Monotonic time at which data was last read, or at which this end was made."""
        self._alive_sent_at = 0.0
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a message arrives."""
        return self._read

    def waits_for(self) -> list[tuple[int, int]]:
        """Return the descriptors to poll, each with its event; an empty list if the other end is closed."""
        if self.closed:
            return []
        return [(self._read, select.EPOLLIN), *([(self._write, select.EPOLLOUT)] if self._to_send else [])]

    @property
    def backlog_bytes(self) -> int:
        """Total size of the messages that still wait for room in the pipe."""
        return len(self._to_send)

    @property
    def silent_seconds(self) -> float:
        """Seconds since data from the other end was last read."""
        return time.monotonic() - self.received_at

    @property
    def alive_is_due(self) -> bool:
        """Whether the last keep-alive message was sent a second ago or earlier."""
        return time.monotonic() - self._alive_sent_at >= ALIVE_SECONDS

    def send(self, message: Message) -> None:
        """Send a message now, or keep it until there is room in the pipe."""
        data = msgspec.msgpack.encode(message)
        self._to_send += len(data).to_bytes(4) + data
        self.flush()

    def keep_alive(self) -> None:
        """Send a keep-alive message if one is due and the backlog is not full."""
        if self.alive_is_due and self.backlog_bytes < BACKLOG_BYTES:
            self._alive_sent_at = time.monotonic()
            self.send(Alive(time.time()))

    def flush(self) -> None:
        """Write as much as the pipe takes now; discard everything unsent if the other end reads no more."""
        try:
            while self._to_send and not self.closed:
                del self._to_send[: os.write(self._write, self._to_send)]
        except BlockingIOError:
            pass
        except OSError:  # the other end reads no more, but what it sent before can still be read
            self._to_send.clear()

    def push(self, seconds: float) -> None:
        """Wait for room in the pipe, and write as much as it takes within ``seconds``."""
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._write, select.POLLOUT)
        while self._to_send and not self.closed and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self.flush()

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have arrived.

        Raises:
            ProtocolError: what arrived is not a message.
        """
        self.flush()
        self._fill()
        if not self._preamble_seen and not self._skip_preamble():
            return
        while len(self._received) >= 4:  # noqa: PLR2004 -- bytes of a length
            length = int.from_bytes(self._received[:4])
            if length > _MESSAGE_BYTES:
                raise ProtocolError(
                    f"It announced a message of {length:,} bytes; the limit is {_MESSAGE_BYTES:,}."
                )
            if len(self._received) < 4 + length:
                return
            data = bytes(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            try:
                message = _DECODER.decode(data)
            except msgspec.MsgspecError as error:
                raise ProtocolError(str(error)) from None
            yield message

    def close(self) -> None:
        """Close both descriptors."""
        for descriptor in {self._read, self._write}:
            os.close(descriptor)

    def _fill(self) -> None:
        """Read once, so that a host that floods its pipe holds up no other; what is left wakes a poll."""
        if self.closed:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._read, _READ_BYTES)
            self._received += data
            self.closed = not data
            self.received_at = time.monotonic() if data else self.received_at

    def _skip_preamble(self) -> bool:
        """Drop what a login shell printed before the preamble; return whether the preamble has arrived."""
        before, found, after = bytes(self._received).partition(_PREAMBLE)
        if found:
            self._received, self._preamble_seen = bytearray(after), True
        elif len(before) > _PREAMBLE_BYTES:
            raise ProtocolError(f"Something else answered: {before[:80].decode(errors='replace')}")
        return self._preamble_seen


class PipePoll:
    """Waits for any of several pipes, at a cost that does not grow with their number."""

    def __init__(self, pipes: Iterable[MessagePipe]) -> None:
        self._epoll = select.epoll()
        self._pipes: dict[int, MessagePipe] = {}
        """The pipe of each descriptor that was ever awaited."""
        self._awaited: dict[MessagePipe, list[tuple[int, int]]] = {}
        for pipe in pipes:
            self.update(pipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()

    def wait(self, seconds: float) -> list[MessagePipe]:
        """Wait at most ``seconds`` until some pipes can be read or written, and return those.

        The list is empty if the time is up.
        """
        events = self._epoll.poll(seconds, max(1, len(self._pipes)))
        return list({self._pipes[descriptor]: None for descriptor, _ in events})

    def update(self, pipe: MessagePipe, *, is_lost: bool = False) -> None:
        """Await what a pipe waits for now, or nothing if it ``is_lost``; to be called after every use."""
        before, awaited = self._awaited.get(pipe, []), [] if is_lost else pipe.waits_for()
        if awaited == before:
            return
        for descriptor, _ in before:
            self._epoll.unregister(descriptor)
        for descriptor, event in awaited:
            self._epoll.register(descriptor, event)
            self._pipes[descriptor] = pipe
        self._awaited[pipe] = awaited


def wait_for(pipes: Iterable[MessagePipe], seconds: float) -> list[MessagePipe]:
    """Wait at most ``seconds`` until some pipes can be read or written, and return those.

    The list is empty if the time is up.
    """
    with PipePoll(pipes) as poll:
        return poll.wait(seconds)
