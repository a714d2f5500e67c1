"""What the parent and the agent on a host say to each other, and how: messages over two pipes.

A message is MessagePack, four bytes of its length before it. Neither end ever waits for the other: behind
a link that went down a pipe fills up, and whoever waited for it could not end what has to be ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIVE_SECONDS = 0.5
"""How often either end says that it lives."""
BACKLOG_BYTES = 1 << 20
"""Beyond this nothing more is read to be sent."""

_BEGIN = b"\0RINGSIDE 1\n"
"""What stands before the first message: a login shell may have said something on the same pipe."""
_GREETING_BYTES = 1 << 20
_MESSAGE_BYTES = 1 << 26
_READ_BYTES = 1 << 18
_READS = 16
"""Maximum number of reads before messages are taken: one end that floods must not fill the other's memory."""


class ChannelError(Exception):
    """What came is not from an agent of ours."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The agent's first word."""

    hostname: str
    python: str
    version: str
    addresses: dict[str, list[str]] = {}
    """Of every network interface that is up, its IPv4 addresses with their networks: 10.0.0.2/24."""
    cpus: list[int] = []
    """CPUs that a launch may use there."""
    gpus: int = 0
    """NVIDIA GPUs that its driver shows there, or as many of them as CUDA_VISIBLE_DEVICES names."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Begin a launch on this host. It travels by standard input, so that it may hold secrets."""

    directory: str
    """The launch's folder on the host, whose path is also the launch's name: it marks all its processes."""
    in_place: bool = False
    """Whether the folder is the run's own, on the parent's machine: then no file need be sent back. Any
    other is made on the host's own disk, and removed after the launch."""
    files: dict[str, bytes]
    """What to write there, or elsewhere if the name is a whole path; readable by its owner alone."""
    programs: dict[str, bytes] = {}
    """More files by their whole paths, which may be executed."""
    folders: tuple[str, ...] = ()
    """More folders to make and to remove: scratch."""
    argv: tuple[str, ...] = ()
    """What to execute; nothing where a launcher elsewhere starts the ranks of this host."""
    environment: dict[str, str] = {}
    """Over what a launch may inherit of the host's."""
    deadline_seconds: float


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A sign of life, from either end."""

    at: float
    """Unix time of the sender, whose clock may be wrong."""


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The launch's files and folders are there: its ranks may start."""


class FindPort(msgspec.Struct, frozen=True, tag=True):
    """Ask for a port that is free there now; only between launches."""


class Port(msgspec.Struct, frozen=True, tag=True):
    """A port that was free a moment ago."""

    number: int


class End(msgspec.Struct, frozen=True, tag=True):
    """End the launch, and tell when it has ended."""


class Piece(msgspec.Struct, frozen=True, tag=True):
    """What was appended to a file of the launch."""

    name: str
    offset: int
    data: bytes


class Whole(msgspec.Struct, frozen=True, tag=True):
    """A file of the launch that is written whole or not at all."""

    name: str
    data: bytes


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nothing of the launch runs on this host any more, and all its files have been sent."""

    status: int | None
    """Of what was executed; None where it was ended, or nothing was to be executed."""
    seconds: float
    timed_out: bool = False


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The launch could not begin on this host, or its folder can no longer be written."""

    kind: str
    """Name of the error's class."""
    what: str
    found: str
    remedy: str = ""


Message = Ready | Begin | Begun | FindPort | Port | Alive | End | Piece | Whole | Ended | Refused

_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end of it.

    Args:
        read: descriptor that the other end's messages come from.
        write: descriptor that ours go to.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write
        self._came = bytearray()
        self._greeted = False
        self._to_send = bytearray(_BEGIN)
        self.closed = False
        """The other end is gone."""
        self.heard_at = time.monotonic()
        """When anything last came."""
        self._said_alive_at = 0.0
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a message arrives."""
        return self._read

    def waits_for(self) -> list[tuple[int, int]]:
        """Return the descriptors, each with its event of ``poll``, on which there is something to do."""
        return [(self._read, select.POLLIN), *([(self._write, select.POLLOUT)] if self._to_send else [])]

    @property
    def backlog_bytes(self) -> int:
        """Bytes that the other end has not taken yet."""
        return len(self._to_send)

    @property
    def silent_seconds(self) -> float:
        """How long nothing has come."""
        return time.monotonic() - self.heard_at

    def send(self, message: Message) -> None:
        """Send a message, as soon as the other end takes it."""
        data = msgspec.msgpack.encode(message)
        self._to_send += len(data).to_bytes(4) + data
        self.flush()

    def keep_alive(self) -> None:
        """Give a sign of life, where one is due and the last ones have gone."""
        if time.monotonic() - self._said_alive_at >= ALIVE_SECONDS and self.backlog_bytes < BACKLOG_BYTES:
            self._said_alive_at = time.monotonic()
            self.send(Alive(time.time()))

    def flush(self) -> None:
        """Let go what the other end takes now."""
        try:
            while self._to_send and not self.closed:
                del self._to_send[: os.write(self._write, self._to_send)]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def push(self, seconds: float) -> None:
        """Let go what the other end takes within so many seconds: a pipe alone holds little."""
        until = time.monotonic() + seconds
        while self._to_send and not self.closed and (left := until - time.monotonic()) > 0:
            _wait(self._write, select.POLLOUT, left)
            self.flush()

    def receive(self) -> Iterator[Message]:
        """Yield what has come.

        Raises:
            ChannelError: it is no message.
        """
        self.flush()
        self._fill()
        if not self._greeted and not self._skip_greeting():
            return
        while len(self._came) >= 4:  # noqa: PLR2004 -- bytes of a length
            length = int.from_bytes(self._came[:4])
            if length > _MESSAGE_BYTES:
                raise ChannelError(f"a message of {length} bytes was announced")
            if len(self._came) < 4 + length:
                return
            data = bytes(self._came[4 : 4 + length])
            del self._came[: 4 + length]
            try:
                yield _DECODER.decode(data)
            except msgspec.MsgspecError as error:
                raise ChannelError(str(error)) from None

    def wait(self, seconds: float) -> None:
        """Wait until something comes, but not longer."""
        _wait(self._read, select.POLLIN, seconds)

    def _fill(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(0 if self.closed else _READS):
                data = os.read(self._read, _READ_BYTES)
                if not data:
                    self.closed = True
                    return
                self._came += data
                self.heard_at = time.monotonic()

    def _skip_greeting(self) -> bool:
        before, found, after = bytes(self._came).partition(_BEGIN)
        if found:
            self._came, self._greeted = bytearray(after), True
        elif len(before) > _GREETING_BYTES:
            raise ChannelError(f"something else answered: {before[:80].decode(errors='replace')}")
        return self._greeted


def _wait(descriptor: int, event: int, seconds: float) -> None:
    # Not select(): it takes no descriptor above 1023, and five hundred hosts need more.
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll(seconds * 1000)
