"""Carry out one launch on this host, and leave nothing behind.

The agent makes the folders and starts the launcher, if one starts on this host. It renews the lease of
the ranks while the parent sends messages. In the end it ends every process and removes the folders. When
the parent is killed, the pipe closes, and the agent does the same.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from backends.launchers.request import Command
from compare.errors import OutputError, RingsideError, system_reason
from compare.launch.agent.mirror import Mirror
from compare.launch.agent.protocol import Begun, End, Ended, Refused
from compare.launch.processes import supervise
from compare.schema.launch_files import LEASE_SECONDS, LaunchFiles

if TYPE_CHECKING:
    from compare.launch.agent.protocol import Begin, Channel

_PUSH_SECONDS = 0.05
"""Maximum time to wait for a full pipe between two ticks."""


def carry_out(begin: Begin, channel: Channel) -> Ended | Refused:
    """Carry out a launch, and leave nothing of it on this host."""
    made: list[Path] = []
    try:
        _make_folders(begin, made)
        launch = _Launch(begin, channel)
        channel.send(Begun())
        ending = supervise(
            Command(begin.argv, begin.environment) if begin.argv else None,
            name=begin.directory,
            log=launch.files.launcher_log,
            deadline_seconds=begin.deadline_seconds,
            on_tick=launch.tick,
            wake=channel.fileno(),
        )
        launch.send_the_rest()
    except RingsideError as error:
        return Refused(kind=type(error).__name__, what=error.what, found=error.found, remedy=error.remedy)
    except OSError as error:
        return Refused(
            kind=OutputError.__name__,
            what=f"{begin.directory} could not be used.",
            found=str(error),
            remedy="Is this machine among the hosts twice, or its disk full? `compare doctor` tells.",
        )
    else:
        return Ended(status=ending.status, seconds=ending.seconds, timed_out=ending.timed_out)
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


class _Launch:
    """A launch that runs on this host."""

    def __init__(self, begin: Begin, channel: Channel) -> None:
        self.files = LaunchFiles(Path(begin.directory))
        self._channel = channel
        known = {*begin.files, self.files.lease.name}
        self._mirror = None if begin.in_place else Mirror(self.files.directory, known)
        self._renewed_at = 0.0

    def tick(self) -> bool:
        """Exchange messages and renew the lease; return whether to go on."""
        ordered_to_end = any([isinstance(message, End) for message in self._channel.receive()])  # noqa: C419
        self._renew_lease()
        if self._mirror:
            self._mirror.send(self._channel)
        self._channel.push(_PUSH_SECONDS)
        self._channel.keep_alive()
        return not (ordered_to_end or self._is_abandoned())

    def send_the_rest(self) -> None:
        """Send all files to their end, as long as the parent reads."""
        while (self._mirror and not self._mirror.send(self._channel)) or self._channel.backlog_bytes:
            for _ in self._channel.receive():
                pass
            if self._is_abandoned():
                return
            self._channel.push(_PUSH_SECONDS)

    def _is_abandoned(self) -> bool:
        return self._channel.closed or self._channel.silent_seconds > LEASE_SECONDS

    def _renew_lease(self) -> None:
        # Only a message of the parent renews it, so that ranks and agent give up the parent together.
        if self._channel.heard_at <= self._renewed_at:
            return
        self._renewed_at = self._channel.heard_at
        try:
            os.utime(self.files.lease)
        except OSError as error:
            raise OutputError(
                f"The run's folder {self.files.directory} can no longer be written.",
                found=system_reason(error),
                remedy="Was it removed, or its disk taken away? Run again with another --output.",
            ) from None


def _make_folders(begin: Begin, made: list[Path]) -> None:
    own = () if begin.in_place else (begin.directory,)
    for folder in map(Path, (*own, *begin.folders)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Not exist_ok: two names of one machine in a hostfile must not pass for two hosts.
        folder.mkdir(mode=0o700)
        made.append(folder)
    for name, content in begin.files.items():
        # A name may be a whole path, of a file in one of the other folders.
        _write(Path(begin.directory) / name, content, 0o600)
    for name, content in begin.programs.items():
        Path(name).parent.mkdir(exist_ok=True)
        _write(Path(name), content, 0o700)
    LaunchFiles(Path(begin.directory)).lease.touch()


def _write(path: Path, content: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
