"""Name the files of one launch.

The witness of a rank imports this before anything heavy, so it imports the standard library alone.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

LEASE_SECONDS = 6.0
"""Maximum time between two renewals of the lease by the parent.

The parent renews it twice a second. A witness checks every second, and a rank may take two to exit. So all is
over within 10 s.
"""
_OF_A_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.(?:json|failure\.json|log|stacks|progress|witness|exit)")


class LaunchFiles:
    """The files of one launch.

    A rank and its witness write only their own.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.job = directory / "job.json"
        self.commands = directory / "commands.json"
        """The command lines, kept also where the launch fails."""
        self.launcher_log = directory / "launcher.log"
        self.lease = directory / "lease"
        """Touched by the parent while it lives."""

    @staticmethod
    def rank_of(name: str) -> int | None:
        """Return the rank that writes a file of this name."""
        matched = _OF_A_RANK.fullmatch(name)
        return int(matched[1]) if matched else None

    def launcher_logs(self) -> list[Path]:
        """Return the logs of the launchers, here and on other hosts."""
        return sorted(self.directory.glob(f"{self.launcher_log.stem}*{self.launcher_log.suffix}"))

    def result(self, rank: int) -> Path:
        """Return where a rank writes its ``RankResult``."""
        return self.directory / f"rank-{rank}.json"

    def failure(self, rank: int) -> Path:
        """Return where a rank writes its ``RankFailure``."""
        return self.directory / f"rank-{rank}.failure.json"

    def log(self, rank: int) -> Path:
        """Return where a rank's stdout and stderr go."""
        return self.directory / f"rank-{rank}.log"

    def stacks(self, rank: int) -> Path:
        """Return where a rank writes its stacks at SIGTERM."""
        return self.directory / f"rank-{rank}.stacks"

    def progress(self, rank: int) -> Path:
        """Return where a rank appends its ``Progress``."""
        return self.directory / f"rank-{rank}.progress"

    def witness(self, rank: int) -> Path:
        """Return where a rank's witness writes its process id at the start."""
        return self.directory / f"rank-{rank}.witness"

    def witnesses(self) -> set[int]:
        """Return the process ids of all witnesses on this host."""
        texts = []
        for file in self.directory.glob("rank-*.witness"):
            with suppress(OSError):
                texts.append(file.read_text())
        return {int(text) for text in texts if text.isdecimal()}

    def exit(self, rank: int) -> Path:
        """Return where a rank's witness writes the ``RankExit``.

        It is the last file of a rank.
        """
        return self.directory / f"rank-{rank}.exit"
