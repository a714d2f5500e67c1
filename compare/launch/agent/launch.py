"""Carry out one launch on this host, and leave nothing behind.

The agent makes the folders, and starts the launcher if one starts on this host. While the parent sends
messages, the agent renews the lease of the ranks: a file whose age tells them that the parent lives. In the
end it ends every process and removes the folders. When the parent is killed, the pipe closes, and the agent
cleans up in the same way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from backends.launchers.request import Command
from compare.errors import OutputError, RingsideError, system_reason
from compare.launch.agent.mirror import Mirror
from compare.launch.agent.protocol import (
    End,
    Exited,
    Go,
    MessagePipe,
    ProtocolError,
    Refused,
    Start,
    Started,
    Waiting,
)
from compare.launch.agent.rank_watch import RankWatch
from compare.launch.agent.turn_gate import TurnGate
from compare.launch.processes import Segments, end_all, supervise
from compare.schema.launch_files import LEASE_SECONDS, LaunchFiles
from compare.system.limits import memory_left_bytes

_PUSH_SECONDS = 0.05
"""Maximum time to wait for room in a full pipe before the ranks are looked after again."""


def carry_out(start: Start, pipe: MessagePipe, segments: Segments | None) -> Exited | Refused:
    """Carry out a launch to its end, and return the last message for the parent.

    ``Refused`` means that the launch could not start, or was ended by an error. In any case, no process,
    no scratch folder and none of the launch's ``segments`` of shared memory is left on this host.
    """
    made: list[Path] = []
    try:
        _make_folders(start, made)
        launch = _Launch(start, pipe)
        pipe.send(Started())
        status = supervise(
            Command(start.argv, start.environment) if start.argv else None,
            name=start.directory,
            log=launch.files.launcher_log,
            on_tick=launch.tick,
            wake=[pipe.fileno(), *([launch.gate.fileno()] if launch.gate else [])],
            while_waiting=launch.keep_alive,
            segments=segments,
        )
        launch.send_the_rest()
    except RingsideError as error:
        return Refused(kind=type(error).__name__, what=error.what, found=error.found, remedy=error.remedy)
    except OSError as error:
        return Refused(
            kind=OutputError.__name__,
            what=f"The folders of {start.directory} could not be used.",
            found=str(error),
            remedy="Check the free space and the permissions there, or set TMPDIR to another folder."
            if start.in_place
            else "Is that machine among the hosts twice, or its disk full? Run `ringside doctor`.",
        )
    else:
        return Exited(status=status, abandoned=status is None and launch.is_abandoned())
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


def clean_up(
    start: Start, segments: Segments | None, while_waiting: Callable[[], None] = lambda: None
) -> None:
    """End a launch on this machine whose own agent process is lost, and remove its folders and ``segments``.

    ``while_waiting`` is called again and again until all processes of the launch have exited.
    """
    end_all(start.directory, while_waiting=while_waiting, segments=segments)
    for folder in _folders(start):
        shutil.rmtree(folder, ignore_errors=True)


class _Launch:
    """A launch that runs on this host, with its pipe to the parent."""

    def __init__(self, start: Start, pipe: MessagePipe) -> None:
        self.files = LaunchFiles(Path(start.directory))
        self._pipe = pipe
        known = {*start.files, self.files.lease.name}
        self._mirror = None if start.in_place else Mirror(self.files.directory, known)
        self._watch = RankWatch(self.files)
        self._renewed_at = 0.0
        takes_turns = start.turns and start.ranks
        self.gate = TurnGate(Path(start.turns), start.ranks, stops=start.stops) if takes_turns else None

    def tick(self) -> bool:
        """Exchange messages with the parent and renew the lease; return whether the launch may go on."""
        ordered_to_end = False
        for message in self._pipe.receive():
            ordered_to_end = ordered_to_end or isinstance(message, End)
            if isinstance(message, Go) and self.gate:
                self.gate.go(message.turn)
        if self.gate and (arrivals := self.gate.arrived()):
            self._pipe.send(Waiting(arrivals, memory_left_bytes()))
        self._renew_lease()
        self._send_news()
        if self._mirror:
            self._mirror.send(self._pipe)
        self._pipe.push(_PUSH_SECONDS)
        self._pipe.keep_alive()
        return not (ordered_to_end or self.is_abandoned())

    def keep_alive(self) -> None:
        """Discard what the parent sends, and send it a keep-alive message if one is due."""
        with suppress(ProtocolError):  # a wrong message must not break off the clean-up
            for _ in self._pipe.receive():
                pass
        self._pipe.keep_alive()

    def send_the_rest(self) -> None:
        """Send everything that is left of the launch's files; give up if the parent exits or falls silent."""
        self._send_news()
        while (self._mirror and not self._mirror.send(self._pipe)) or self._pipe.backlog_bytes:
            for _ in self._pipe.receive():
                pass
            if self.is_abandoned():
                return
            self._pipe.push(_PUSH_SECONDS)

    def is_abandoned(self) -> bool:
        """Return whether the parent has exited, or sent nothing for longer than the lease lasts."""
        return self._pipe.closed or self._pipe.silent_seconds > LEASE_SECONDS

    def _send_news(self) -> None:
        if news := self._watch.look():
            self._pipe.send(news)

    def _renew_lease(self) -> None:
        # Only messages of the parent renew it, so that ranks and agent give up at the same time.
        if self._pipe.received_at <= self._renewed_at:
            return
        self._renewed_at = self._pipe.received_at
        try:
            os.utime(self.files.lease)
        except OSError as error:
            retry = "Run again with another --output." if self._mirror is None else "Run again."
            raise OutputError(
                f"The launch's folder {self.files.directory} can no longer be written.",
                found=system_reason(error),
                remedy=f"Was it removed, or its disk unmounted? {retry}",
            ) from None


def _make_folders(start: Start, made: list[Path]) -> None:
    """Make the folders and files of a launch, and add each folder to ``made`` as soon as it exists."""
    for folder in _folders(start):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Not exist_ok: two names of one machine in a hostfile must not pass for two hosts.
        folder.mkdir(mode=0o700)
        made.append(folder)
    for name, content in start.files.items():
        # A name may be a whole path, of a file in one of the other folders.
        _write(Path(start.directory) / name, content, 0o600)
    for name, content in start.programs.items():
        Path(name).parent.mkdir(exist_ok=True)
        _write(Path(name), content, 0o700)
    LaunchFiles(Path(start.directory)).lease.touch()


def _folders(start: Start) -> list[Path]:
    """Return the folders that a launch makes at its start, and removes at its end."""
    return [Path(folder) for folder in (*([] if start.in_place else [start.directory]), *start.folders)]


def _write(path: Path, content: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
