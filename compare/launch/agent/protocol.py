"""Exchange messages between the parent and an agent over two pipes.

Each message is MessagePack, after four bytes with its length. Neither end ever blocks. Behind a failed link
a pipe fills up, and a process that waited for it could not end a launch.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator

import msgspec

from compare.schema.turns import Arrival, Turn

ALIVE_SECONDS = 0.5
"""Time between two keep-alive messages of either end."""
BACKLOG_BYTES = 1 << 20
"""Size of unsent messages beyond which no more files are read."""

_PREAMBLE = b"\0RINGSIDE 1\n"
"""Marks the first message: a login shell may print before it."""
_PREAMBLE_BYTES = 1 << 20
_MESSAGE_BYTES = 1 << 26
_READ_BYTES = 1 << 18
_READS = 16
"""Maximum number of reads at a time, against a flood."""


class ProtocolError(Exception):
    """The other end sent something that is not a message."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message of an agent describes its machine."""

    hostname: str
    python: str
    version: str
    addresses: dict[str, list[str]] = {}
    """By interface that is up: its IPv4 addresses with networks, as 10.0.0.2/24."""
    cpus: list[int] = []
    """CPUs that a launch may use there."""
    core_quota: float | None = None
    """Cores that its control groups allow; None without a limit."""
    gpus: int = 0
    """Number of NVIDIA GPUs that its driver and CUDA_VISIBLE_DEVICES show."""
    memory_left_bytes: int
    """Memory that processes may still take there."""
    cannot_compile: str = ""
    """What torch.compile lacks there; empty if it can compile."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a launch on this host.

    It travels through a pipe, so that it may hold secrets.
    """

    directory: str
    """The launch's folder on the host.

    Its path is the name of the launch, which marks all its processes.
    """
    in_place: bool = False
    """Whether it is the run's own folder, on the parent's machine.

    Then no file is sent back. Any other folder is made on the host's own disk, and removed afterwards.
    """
    files: dict[str, bytes]
    """Private files, by their names in the folder or their whole paths."""
    programs: dict[str, bytes] = {}
    """More files, by their whole paths, that can be executed."""
    folders: tuple[str, ...] = ()
    """Scratch folders to make, and to remove after the launch."""
    argv: tuple[str, ...] = ()
    """The launcher; empty where another host has it."""
    environment: dict[str, str] = {}
    """Set for the launcher, over what it inherits from the host."""
    turns: Turns | None = None
    """How its ranks wait for their turns; None without turns."""
    segments: str = ""
    """Pattern of what its library may leave in /dev/shm, or empty."""


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """How ranks of one host wait for their turns."""

    directory: str
    """One of ``folders``, for the pipes of the ranks."""
    ranks: int
    """Ranks of this host."""
    stops: bool
    """Whether ranks are stopped, because threads of their library run on."""


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Either end is alive."""

    at: float
    """Unix time of the sender, whose clock may be wrong."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """The files and folders of the launch are there."""


class FindPort(msgspec.Struct, frozen=True, tag=True):
    """Ask for a free port."""


class Port(msgspec.Struct, frozen=True, tag=True):
    """A port that is free on every address."""

    number: int


class End(msgspec.Struct, frozen=True, tag=True):
    """End the launch; the answer is ``Exited``."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """Give the waiting ranks of the launch their turn."""

    turn: Turn


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """All ranks of this host wait for their next turn."""

    arrivals: list[Arrival]
    memory_left_bytes: int
    """Memory that further processes may take on this host."""


class FileChunk(msgspec.Struct, frozen=True, tag=True):
    """Data that was appended to a file of the launch."""

    name: str
    offset: int
    data: bytes


class FileContent(msgspec.Struct, frozen=True, tag=True):
    """A file of the launch that is written at once."""

    name: str
    data: bytes


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No process of the launch is left; all its files were sent."""

    status: int | None
    """Of the launcher; None where it was ended, or there was none."""
    abandoned: bool = False
    """Whether the launch was ended because the parent sent no messages."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The launch could not start, or its folder was lost."""

    kind: str
    """Name of the error's class."""
    what: str
    found: str
    remedy: str = ""


class OfLaunch(msgspec.Struct, frozen=True, tag=True):
    """A message to or from one of the launches on a host."""

    launch: str
    """Its name, which is that of its folder on the host."""
    data: bytes
    """The message, encoded."""


Message = (
    Ready
    | OfLaunch
    | Start
    | Started
    | FindPort
    | Port
    | Alive
    | Go
    | Waiting
    | End
    | FileChunk
    | FileContent
    | Exited
    | Refused
)

_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Write one message."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes) -> Message:
    """Read one message.

    Raises:
        ProtocolError: it is something else.
    """
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from None


class MessagePipe:
    """One end of the two pipes."""

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write
        self._received = bytearray()
        self._preamble_seen = False
        self._to_send = bytearray(_PREAMBLE)
        self.closed = False
        """Whether the other end has closed its pipe."""
        self.received_at = time.monotonic()
        """Monotonic time of the last data from the other end."""
        self._alive_sent_at = 0.0
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a message arrives."""
        return self._read

    def waits_for(self) -> list[tuple[int, int]]:
        """Return the descriptors to poll, each with its event."""
        if self.closed:
            return []
        return [(self._read, select.POLLIN), *([(self._write, select.POLLOUT)] if self._to_send else [])]

    @property
    def backlog_bytes(self) -> int:
        """Size of the messages that the other end has not read yet."""
        return len(self._to_send)

    @property
    def silent_seconds(self) -> float:
        """Time since the last data from the other end."""
        return time.monotonic() - self.received_at

    def send(self, message: Message) -> None:
        """Send a message as soon as there is room in the pipe."""
        self.send_encoded(encode(message))

    def send_encoded(self, data: bytes) -> None:
        """Send an encoded message likewise."""
        self._to_send += len(data).to_bytes(4) + data
        self.flush()

    def keep_alive(self) -> None:
        """Send a keep-alive message if one is due."""
        if time.monotonic() - self._alive_sent_at >= ALIVE_SECONDS and self.backlog_bytes < BACKLOG_BYTES:
            self._alive_sent_at = time.monotonic()
            self.send(Alive(time.time()))

    def flush(self) -> None:
        """Write as much as the pipe takes now."""
        try:
            while self._to_send and not self.closed:
                del self._to_send[: os.write(self._write, self._to_send)]
        except BlockingIOError:
            pass
        except OSError:  # the other end reads no more, but what it sent before can still be read
            self._to_send.clear()

    def push(self, seconds: float) -> None:
        """Write as much as the pipe takes within some time."""
        until = time.monotonic() + seconds
        while self._to_send and not self.closed and (left := until - time.monotonic()) > 0:
            _wait(self._write, select.POLLOUT, left)
            self.flush()

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have arrived.

        Raises:
            ProtocolError: something else arrived.
        """
        return map(decode, self.receive_encoded())

    def receive_encoded(self) -> Iterator[bytes]:
        """Yield them encoded.

        Raises:
            ProtocolError: something else arrived.
        """
        self.flush()
        self._fill()
        if not self._preamble_seen and not self._skip_preamble():
            return
        while len(self._received) >= 4:  # noqa: PLR2004 -- bytes of a length
            length = int.from_bytes(self._received[:4])
            if length > _MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes was announced")
            if len(self._received) < 4 + length:
                return
            data = bytes(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            yield data

    def close(self) -> None:
        """Close both descriptors."""
        for descriptor in {self._read, self._write}:
            os.close(descriptor)

    def wait(self, seconds: float) -> None:
        """Wait until data arrives, at most for ``seconds``."""
        _wait(self._read, select.POLLIN, seconds)

    def _fill(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(0 if self.closed else _READS):
                data = os.read(self._read, _READ_BYTES)
                if not data:
                    self.closed = True
                    return
                self._received += data
                self.received_at = time.monotonic()

    def _skip_preamble(self) -> bool:
        before, found, after = bytes(self._received).partition(_PREAMBLE)
        if found:
            self._received, self._preamble_seen = bytearray(after), True
        elif len(before) > _PREAMBLE_BYTES:
            raise ProtocolError(f"something else answered: {before[:80].decode(errors='replace')}")
        return self._preamble_seen


def _wait(descriptor: int, event: int, seconds: float) -> None:
    # Not select(): it takes no descriptor above 1023, and 500 hosts need more.
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll(seconds * 1000)
