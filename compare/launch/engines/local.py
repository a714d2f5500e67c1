"""Start processes on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from compare.errors import HostError
from compare.launch.engines import Answer, named
from compare.schema.hosts import Host


class Local(msgspec.Struct, frozen=True):
    """The carrier for this machine, on which every process is a child process."""

    def argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        """Return ``argv`` unchanged."""
        del host
        return tuple(argv)

    def by_hand(self, host: Host) -> str:
        """Return an empty string, because the user is on this machine already."""
        del host
        return ""

    def explain(self, answer: Answer) -> HostError | None:
        """Return the error of a process that a signal killed; None if it exited by itself."""
        if answer.status is None or answer.status >= 0:
            return None
        return HostError(
            f"{named(answer.host)}: a process of Ringside was killed by signal {-answer.status}.",
            found=answer.last_lines,
            remedy="Was it killed by hand, or was memory short? Run again.",
        )

    def remote_shell(self, folder: Path, hosts: Sequence[Host]) -> Mapping[str, str]:
        """Return no files, because launchers start the ranks of this machine themselves."""
        del folder, hosts
        return {}
