"""The agent of one host: ``python -m compare.launch.agent``, at the other end of a pipe.

On this machine the agent is a child process; on any other host the carrier of the engine starts it, ssh
for instance. The one pipe carries everything: the job to the host, progress, results and logs back, and
keep-alive messages in both directions. So hosts need no shared file system, and nothing listens on a port.
A host behind a failed link ends its ranks by itself: the agent renews their lease only while messages
arrive, and ends every process of a launch when the connection closes or stays silent.

``python -m compare.launch.agent end MARK`` ends what is left of a launch.
"""

from __future__ import annotations

import os
<<<<<<< HEAD
=======
import platform
import shutil
>>>>>>> 9e02149 (Every rank has a witness, a small parent process that records how it exited)
import signal
import sys

<<<<<<< HEAD
from compare.launch.agent.launch import carry_out
from compare.launch.agent.machine import describe, free_port
from compare.launch.agent.protocol import ALIVE_SECONDS, Begin, Channel, FindPort, Port
from compare.launch.processes import end_all
from compare.schema.launch_files import LEASE_SECONDS

IDLE_SECONDS = 900.0
"""Maximum time without a message between launches: the data set may have to be fetched and copied first.
When the parent ends, its end of the pipe closes, and the agent exits at once."""
=======
import psutil

from backends.launchers.request import Command
from compare import __version__
from compare.errors import RingsideError
from compare.launch.agent.protocol import (
    ALIVE_SECONDS,
    BACKLOG_BYTES,
    Begin,
    Begun,
    Channel,
    End,
    Ended,
    FindPort,
    Piece,
    Port,
    Ready,
    Refused,
    Whole,
)
from compare.launch.processes import Ending, end_all, supervise
from compare.schema.launch_files import LEASE_SECONDS, LaunchFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

IDLE_SECONDS = 900.0
"""How long it waits, without a sign of life, for a launch to begin: the data set may have to be fetched and
copied first. A parent that ends, however it does, closes the connection, which is noticed at once."""

_POLL_SECONDS = 0.05
_PIECE_BYTES = 1 << 16
_RECORD = LaunchFiles(Path()).exit(0).suffix
>>>>>>> 9e02149 (Every rank has a witness, a small parent process that records how it exited)


def main(channel: Channel) -> None:
    """Carry out one launch after the other until the parent is gone."""
    channel.send(describe())
    while not channel.closed and channel.silent_seconds < IDLE_SECONDS:
        for message in channel.receive():
            if isinstance(message, FindPort):
                channel.send(Port(free_port()))
            if isinstance(message, Begin):
                channel.send(carry_out(message, channel))
                if channel.silent_seconds > LEASE_SECONDS:
                    return  # the parent is given up: no further launch will come
                break
        else:
            channel.keep_alive()
            channel.wait(ALIVE_SECONDS)


<<<<<<< HEAD
=======
def addresses() -> dict[str, list[str]]:
    """Return the IPv4 addresses of this machine's interfaces that are up, with their networks."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: [
            str(ipaddress.ip_interface(f"{a.address}/{a.netmask or 32}"))
            for a in found
            if a.family is socket.AF_INET
        ]
        for name, found in psutil.net_if_addrs().items()
        if name in up
    }


def count_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Count this machine's NVIDIA GPUs without loading torch, which takes a second and a GPU's memory."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(list(driver.glob("*")))
    if visible is None:
        return there
    # As CUDA reads it: what comes after a number below nothing does not count.
    named = takewhile(lambda name: not name.startswith("-"), map(str.strip, visible.split(",")))
    return min(there, len(list(filter(None, named))))


def free_port(address: str = "") -> int:
    """Return a port that is free now on an address of this machine, or on all; the usual 29500 clashes."""
    with closing(socket.socket()) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class Mirror:
    """Sends the files of a folder: JSON and exit records when they are whole, others as they grow.

    A rank's exit record is its last file. It is sent after all that the rank wrote before.

    Args:
        directory: whose files, those of folders below it not.
        known: files that need not be sent.
    """

    def __init__(self, directory: Path, known: set[str]) -> None:
        self._directory = directory
        self._known = known
        self._sent: dict[str, tuple[int, int]] = {}

    def send(self, channel: Channel) -> bool:
        """Send what is new, as far as it is taken; return whether that was all."""
        # Listed before the others: a rank that has a record by now writes nothing more.
        records = [path for path in self._files() if path.suffix == _RECORD]
        others = [path for path in self._files() if path.suffix != _RECORD]
        return self._send_all(others, channel) and self._send_all(records, channel)

    def _send_all(self, paths: list[Path], channel: Channel) -> bool:
        complete = True
        for path in paths:
            while channel.backlog_bytes < BACKLOG_BYTES and self._send_some(path, channel):
                pass
            complete = complete and channel.backlog_bytes < BACKLOG_BYTES
        return complete

    def _files(self) -> Iterator[Path]:
        try:
            entries = [entry for entry in os.scandir(self._directory) if entry.is_file()]
        except OSError:  # removed under us
            return
        for entry in sorted(entries, key=lambda entry: entry.name):
            # What begins with a dot is still being written.
            if entry.name not in self._known and not entry.name.startswith("."):
                yield Path(entry.path)

    def _send_some(self, path: Path, channel: Channel) -> bool:
        if path.suffix in {".json", _RECORD}:
            found = path.stat()
            state = (found.st_ino, found.st_mtime_ns)
            if self._sent.get(path.name) == state:
                return False
            channel.send(Whole(path.name, path.read_bytes()))
            self._sent[path.name] = state
            return False
        _, offset = self._sent.get(path.name, (0, 0))
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_PIECE_BYTES)
        if data:
            channel.send(Piece(path.name, offset, data))
            self._sent[path.name] = (0, offset + len(data))
        return len(data) == _PIECE_BYTES


class _Launch:
    """A launch under way on this host."""

    def __init__(self, begin: Begin, channel: Channel) -> None:
        self._channel = channel
        self._files = LaunchFiles(Path(begin.directory))
        self._mirror = Mirror(self._files.directory, {*begin.files, self._files.lease.name})
        self._renewed_at = 0.0

    def tick(self) -> bool:
        """Hear, renew, look, and tell; return whether the launch may go on."""
        ordered_to_end = any([isinstance(message, End) for message in self._channel.receive()])  # noqa: C419
        self._renew_lease()
        self._mirror.send(self._channel)
        self._channel.push(_POLL_SECONDS)
        self._channel.keep_alive()
        return not (ordered_to_end or self._channel.closed or self._channel.silent_seconds > LEASE_SECONDS)

    def send_the_rest(self) -> None:
        """Send all that there is, for as long as somebody listens."""
        while not self._mirror.send(self._channel) or self._channel.backlog_bytes:
            for _ in self._channel.receive():
                pass
            if self._channel.closed or self._channel.silent_seconds > LEASE_SECONDS:
                return
            self._channel.push(_POLL_SECONDS)

    def _renew_lease(self) -> None:
        # Only what was heard renews it, so that ranks and agent give the parent up together.
        if self._channel.heard_at > self._renewed_at:
            self._renewed_at = self._channel.heard_at
            self._files.lease.touch()


def _carry_out(begin: Begin, channel: Channel) -> Ended | Refused:
    """Carry out a launch; nothing of it is left when this returns, whatever it returns."""
    made: list[Path] = []
    began = time.monotonic()
    try:
        _make_folders(begin, made)
        launch = _Launch(begin, channel)
        channel.send(Begun())
        ending = _execute(begin, launch)
        launch.send_the_rest()
    except RingsideError as error:
        return Refused(what=error.what, found=error.found, remedy=error.remedy)
    except OSError as error:
        return Refused(
            what=f"{begin.directory} could not be used.",
            found=str(error),
            remedy="Is this machine among the hosts twice, or its disk full? `compare doctor` tells.",
        )
    else:
        seconds = time.monotonic() - began
        return Ended(status=ending.status, seconds=seconds, timed_out=ending.timed_out)
    finally:
        end_all(begin.mark)
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


def _make_folders(begin: Begin, made: list[Path]) -> None:
    for folder in (Path(begin.directory), *map(Path, begin.folders)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Two hosts of one run that share this folder are one machine: they must not pass for two.
        folder.mkdir(mode=0o700)
        made.append(folder)
    for name, content in begin.files.items():
        handle = os.open(Path(begin.directory) / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    LaunchFiles(Path(begin.directory)).lease.touch()


def _execute(begin: Begin, launch: _Launch) -> Ending:
    if begin.argv:
        return supervise(
            [Command(begin.argv, begin.environment)],
            name=begin.mark,
            log=LaunchFiles(Path(begin.directory)).launcher_log,
            deadline_seconds=begin.deadline_seconds,
            on_tick=launch.tick,
        )
    began = time.monotonic()
    while launch.tick():
        if time.monotonic() - began > begin.deadline_seconds:
            end_all(begin.mark)
            return Ending(None, time.monotonic() - began, timed_out=True)
        time.sleep(_POLL_SECONDS)
    # Before the rest is sent: a rank that is ended may have a last word.
    end_all(begin.mark)
    return Ending(None, time.monotonic() - began)


>>>>>>> 9e02149 (Every rank has a witness, a small parent process that records how it exited)
def _own_pipes() -> Channel:
    """Reserve standard input and output for messages; whatever is printed goes to standard error."""
    read, write = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return Channel(read, write)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup SIGHUP stays ignored
            signal.signal(number, lambda *_: sys.exit(1))  # so that every ``finally`` runs
    if sys.argv[1:2] == ["end"]:
        end_all(sys.argv[2])
    else:
        main(_own_pipes())
