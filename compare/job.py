"""The contract between the parent and a rank: what a launch is to do, and where its files lie."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from compare.arms import Arm
from compare.config import RunConfig
from compare.data import DatasetSource


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, as every rank of it reads it."""

    config: RunConfig
    arm: Arm
    launcher: str
    dataset: DatasetSource
    affinity: list[int]
    """CPUs that every rank must be allowed to use: no launcher may have bound it to fewer."""
    launched_at: float
    """Unix time just before the launcher was started."""


class Progress(NamedTuple):
    """How far one rank has come."""

    step: int
    at: float


class LaunchFiles:
    """The files of one launch. A rank writes only its own, each whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.job = directory / "job.json"
        self.launcher_log = directory / "launcher.log"

    def result(self, rank: int) -> Path:
        """Return where a rank's ``RankResult`` goes."""
        return self.directory / f"rank-{rank}.json"

    def failure(self, rank: int) -> Path:
        """Return where a rank's ``RankFailure`` goes."""
        return self.directory / f"rank-{rank}.failure.json"

    def log(self, rank: int) -> Path:
        """Return where a rank's stdout and stderr go."""
        return self.directory / f"rank-{rank}.log"

    def note_progress(self, rank: int, progress: Progress) -> None:
        """Append a line to a rank's progress; called between blocks, never inside one."""
        with self._progress(rank).open("a") as file:
            file.write(f"{progress.step} {progress.at}\n")

    def read_progress(self, rank: int) -> Progress | None:
        """Return how far a rank has come, or None before it has begun."""
        try:
            lines = self._progress(rank).read_text().splitlines()
        except OSError:
            return None
        if not lines:
            return None
        step, at = lines[-1].split()
        return Progress(int(step), float(at))

    def _progress(self, rank: int) -> Path:
        return self.directory / f"rank-{rank}.progress"
