"""Name the files of one launch.

The witness of a rank imports this module and must stay small, so only the standard library is imported.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partialmethod
from pathlib import Path

LEASE_SECONDS = 6.0
"""Maximum age of the lease, a file that the parent touches every second while it lives.

The witness of each rank checks the age every second, and ends the rank when the lease is too old. A rank may
take 2 s to exit. So every rank has exited within 10 s after its parent died.
"""
_RANK_FILE = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.(?:json|failure\.json|log|stacks|progress|witness|exit)")


class LaunchFiles:
    """The paths of the files of one launch.

    A rank and its witness write only the files of that rank.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.job = directory / "job.json"
        self.commands = directory / "commands.json"
        """The command lines of the launch, which are kept even if it fails."""
        self.launcher_log = directory / "launcher.log"
        self.lease = directory / "lease"
        """The file that the parent touches every second while it lives."""

    @staticmethod
    def rank_of(name: str) -> int | None:
        """Return the rank that writes a file of this name, or None if no rank does."""
        matched = _RANK_FILE.fullmatch(name)
        return int(matched[1]) if matched else None

    def launcher_logs(self) -> list[Path]:
        """Return the sorted paths of the launchers' logs in this folder; several hosts may have one."""
        return sorted(self.directory.glob(f"{self.launcher_log.stem}*{self.launcher_log.suffix}"))

    def _of_rank(self, rank: int, suffix: str) -> Path:
        return self.directory / f"rank-{rank}.{suffix}"

    result = partialmethod(_of_rank, suffix="json")
    """Return the file into which a rank writes its ``RankResult``."""
    failure = partialmethod(_of_rank, suffix="failure.json")
    """Return the file into which a rank writes its ``RankFailure``."""
    log = partialmethod(_of_rank, suffix="log")
    """Return the file that receives a rank's standard output and standard error."""
    stacks = partialmethod(_of_rank, suffix="stacks")
    """Return the file into which a rank writes the stacks of its threads when it receives SIGTERM."""
    progress = partialmethod(_of_rank, suffix="progress")
    """Return the file to which a rank appends its ``Progress`` records."""
    witness = partialmethod(_of_rank, suffix="witness")
    """Return the file into which a rank's witness writes its own process id when it starts."""
    exit = partialmethod(_of_rank, suffix="exit")
    """Return the file into which a rank's witness writes the ``RankExit``, the last file of a rank."""

    def witnesses(self) -> set[int]:
        """Return the process ids of this launch's witnesses on this host."""
        texts = []
        for file in self.directory.glob("rank-*.witness"):
            with suppress(OSError):
                texts.append(file.read_text())
        return {int(text) for text in texts if text.isdecimal()}
