"""Define what the parent and its ranks exchange through files."""

from __future__ import annotations

from contextlib import suppress
from typing import BinaryIO, Literal, NamedTuple, TypeAlias, cast

import msgspec

from compare.data.catalogue import DatasetSource
from compare.schema.arms import Arm
from compare.schema.collectives import SweepConfig
from compare.schema.config import LaunchConfig, RunConfig
from compare.schema.launch_files import LaunchFiles
from compare.schema.parity import Fingerprint, PassKind
from compare.system.files import read_json

Stage = Literal[
    "start",
    "load",
    "data",
    "join",
    "parity",
    "replica",
    "warm-up",
    "reference",
    "turn",
    "train",
    "test",
    "collectives",
    "end",
]
"""The stages of a rank, in this order.

``turn`` is the wait for a turn, before and after ``train``.
"""
_LAST_BYTES = 4096


class LaunchJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="work"):
    """What the ranks of every launch read."""

    config: LaunchConfig
    arm: Arm
    affinity: list[int]
    """CPUs that every rank must be allowed to use."""
    number: int
    """Number of the launch, which decides the order of its blocks."""
    launched_at: float
    """Unix time just before the start of the launcher."""
    turns: str = ""
    """Folder of ``TurnFiles`` on every host; empty without turns."""
    exported: list[str] = []
    """Names of the variables of ``-x``; their values are never saved."""


class Job(LaunchJob, frozen=True, kw_only=True, tag="training"):
    """One launch that trains."""

    config: RunConfig
    dataset: DatasetSource
    proof: Proof = "brief"
    """The parity check of the training."""
    proven: list[Fingerprint] = []
    """What each rank of the arm's proven launches began and ended with.

    A launch that repeats it needs no proof of its own, and another one is proven after its training. Empty
    for a launch that is proven before it.
    """


class SweepJob(LaunchJob, frozen=True, kw_only=True, tag="sweep"):
    """One launch that times a group's collectives alone."""

    config: SweepConfig
    group: str
    """Its name in the registry."""
    interface: str = ""
    """The network interface whose bytes are counted; empty on one host."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One progress record of a rank."""

    stage: Stage
    """The stage that starts."""
    step: int
    """Finished training steps."""
    at: float
    """Unix time."""
    limit_seconds: float
    """Maximum time until the next record."""


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that a rank raised."""

    rank: int
    host: str
    at: float
    """Unix time."""
    message: str
    where: str = ""
    """The file and line that raised."""
    traceback: str = ""


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """How the process of a rank exited, as its witness reported."""

    pid: int
    time: float
    """Unix time."""
    status: int | None
    """The exit status, or None if a signal killed it."""
    signal: int | None
    """The signal that killed it, or None."""
    ended_by: Literal["", "signal", "lease"] = ""
    """Why the witness ended it: a forwarded signal or an expired lease."""
    stopped: bool = False
    """Whether it was stopped (SIGSTOP) at that time."""


def read_job(files: LaunchFiles) -> Job | SweepJob:
    """Read the job of a launch, of either kind."""
    return read_json(files.job, cast("type[Job | SweepJob]", Job | SweepJob))


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
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(line, type=Progress)
    return None


def note_progress(file: BinaryIO, progress: Progress) -> None:
    """Append a progress record with one system call."""
    file.write(msgspec.json.encode(progress) + b"\n")


class Planned(NamedTuple):
    """The next launch."""

    number: int
    """Counts from 1 over the whole run."""
    round: int
    """Counts from 1."""
    arm: Arm
    group: str = ""
    """The group whose collectives are timed alone; empty for a training."""

    @property
    def label(self) -> str:
        """Return what is launched, as a user names it."""
        return self.group or self.arm.label


Proof: TypeAlias = Literal["brief", "whole"]
"""The parity check of a run's launches, or that of ``compare verify``."""

PASSES: dict[Proof, tuple[PassKind, ...]] = {
    "brief": ("float64",),
    "whole": ("float64", "float32", "as run"),
}
STEPS = 20
"""Steps of a pass; more would amplify rounding."""
