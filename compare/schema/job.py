"""The contract between the parent and a rank: what a launch is to do, and where its files lie."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeAlias

import msgspec

from compare.data.catalogue import DatasetSource
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from compare.schema.results import PassKind

Stage = Literal[
    "start",
    "load",
    "data",
    "join",
    "parity",
    "replica",
    "warm-up",
    "reference",
    "train",
    "collectives",
    "test",
    "end",
]
"""What a rank does, in this order."""
_LAST_BYTES = 4096


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, as every rank of it reads it."""

    config: RunConfig
    arm: Arm
    launcher: str
    dataset: DatasetSource
    affinity: list[int]
    """CPUs that every rank must be allowed to use: no launcher may have bound it to fewer."""
    number: int
    """Which launch of the run it is: decides the order of blocks within it."""
    proof: Proof = "brief"
    """What every rank trains beside a single process, before its training."""
    launched_at: float
    """Unix time just before the launcher was started."""
    exported: list[str] = []
    """Names of what the user gives to the ranks' environment; their values are written nowhere."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of progress of one rank."""

    stage: Stage
    """What it is about to do."""
    step: int
    """Training steps done."""
    at: float
    """Unix time."""
    patience_seconds: float
    """How long it may take until the next sign."""
    pid: int


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank ended without a result, in its own words."""

    rank: int
    host: str
    at: float
    """Unix time: the first failure is the cause, whatever the launcher says."""
    kind: Literal["raised", "ended"]
    """It raised; or it was ended by its launcher or for want of its parent, and is not to blame."""
    message: str
    where: str = ""
    """file:line of what raised."""
    traceback: str = ""


class LaunchFiles:
    """The files of one launch. A rank writes only its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.job = directory / "job.json"
        self.commands = directory / "commands.json"
        """The command lines, kept also where the launch fails."""
        self.launcher_log = directory / "launcher.log"
        self.lease = directory / "lease"
        """Touched by the parent while it lives."""

    def launcher_logs(self) -> list[Path]:
        """Return what launchers printed, on this machine and on hosts that started one of their own."""
        return sorted(self.directory.glob(f"{self.launcher_log.stem}*{self.launcher_log.suffix}"))

    def result(self, rank: int) -> Path:
        """Return where a rank's ``RankResult`` goes."""
        return self.directory / f"rank-{rank}.json"

    def failure(self, rank: int) -> Path:
        """Return where a rank's ``RankFailure`` goes."""
        return self.directory / f"rank-{rank}.failure.json"

    def log(self, rank: int) -> Path:
        """Return where a rank's stdout and stderr go."""
        return self.directory / f"rank-{rank}.log"

    def stacks(self, rank: int) -> Path:
        """Return where a rank stood when its launcher told it to end; empty or not there where none did."""
        return self.directory / f"rank-{rank}.stacks"

    def open_progress(self, rank: int) -> BinaryIO:
        """Open a rank's progress, to be kept open for as long as it has something to note."""
        return self._progress(rank).open("ab", buffering=0)

    def read_progress(self, rank: int) -> Progress | None:
        """Return a rank's last sign of progress, or None before it has begun."""
        try:
            with self._progress(rank).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
                lines = file.read().split(b"\n")
        except OSError:
            return None
        # What stands after the last newline is still being written; where the disk was full, a line may lack
        # its end.
        for line in reversed(lines[:-1]):
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(line, type=Progress)
        return None

    def _progress(self, rank: int) -> Path:
        return self.directory / f"rank-{rank}.progress"


def note_progress(file: BinaryIO, progress: Progress) -> None:
    """Append a line to a rank's progress, at once: a system call, some 10 µs."""
    file.write(msgspec.json.encode(progress) + b"\n")


class Planned(NamedTuple):
    """One launch to come."""

    number: int
    """Counts from 1 over the whole run."""
    round: int
    """Counts from 1."""
    arm: Arm


Proof: TypeAlias = Literal["brief", "whole"]
"""What comes before the training of every launch of a run, and what ``compare verify`` asks for."""

PASSES: dict[Proof, tuple[PassKind, ...]] = {
    "brief": ("float64",),
    "whole": ("float64", "float32", "as run"),
}
STEPS = 20
"""Of a pass: enough to show what one step leaves over for the next, too few to amplify rounding."""


LEASE_SECONDS = 6.0
"""How long a rank lives without a sign of life from its parent, who gives one twice a second: with a look
every second, and what a rank needs to begin or a launcher to notice, all is over within 10 s."""
