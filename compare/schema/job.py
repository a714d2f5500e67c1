"""The contract between the parent and a rank: what a launch is to do, and where its files lie."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, TypeAlias

import msgspec

from compare.data.catalogue import DatasetSource
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from compare.schema.results import PassKind

if TYPE_CHECKING:
    from compare.schema.launch_files import LaunchFiles

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


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """How the process of a rank exited, as its witness saw it."""

    pid: int
    time: float
    """Unix time."""
    status: int | None
    """The exit status; None where a signal killed it."""
    signal: int | None
    """The signal that killed it, or None."""
    ended_by: Literal["", "signal", "lease"] = ""
    """Why the witness had told it to end: a signal that it forwarded, or a lease that expired."""
    stopped: bool = False
    """Whether it was stopped (SIGSTOP) at that time."""


def open_progress(files: LaunchFiles, rank: int) -> BinaryIO:
    """Open a rank's progress file for appending without a buffer."""
    return files.progress(rank).open("ab", buffering=0)


def read_progress(files: LaunchFiles, rank: int) -> Progress | None:
    """Return a rank's latest progress record, or None before the first."""
    try:
        with files.progress(rank).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LAST_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    # The text after the last newline is still being written. A full disk may cut a line short.
    for line in reversed(lines[:-1]):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(line, type=Progress)
    return None


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
