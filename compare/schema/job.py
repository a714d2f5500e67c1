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
"""The stages of a rank, in their usual order.

``parity`` may also come after ``test``. ``turn`` is every wait for a turn, before and after ``train``.
"""
_LAST_BYTES = 4096


class LaunchJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="work"):
    """The job that the parent writes into a file, and that every rank of a launch reads."""

    config: LaunchConfig
    arm: Arm
    affinity: list[int]
    """CPUs that every rank must be allowed to use."""
    number: int
    """Number of the launch in the run, which decides the order of its blocks."""
    launched_at: float
    """Unix time just before the parent starts the launcher."""
    turns: str = ""
    """Folder of ``TurnFiles``, the same on every host; empty if the launch takes no turns."""
    exported: list[str] = []
    """Names of the variables of ``-x``, without their values, which are never saved."""


class Job(LaunchJob, frozen=True, kw_only=True, tag="training"):
    """The job of a launch that trains."""

    config: RunConfig
    dataset: DatasetSource
    proof: Proof = "brief"
    """Which passes the parity check of the training has."""
    proven: list[Fingerprint] = []
    """The fingerprint of each rank, in their order, that the arm's proven launches have in common.

    A launch that ends with the same fingerprints is not proven again; any other is proven after its training.
    An empty list asks for the proof before the training.
    """


class SweepJob(LaunchJob, frozen=True, kw_only=True, tag="sweep"):
    """The job of a launch that times a group's collectives without training."""

    config: SweepConfig
    group: str
    """Name of the group in the registry."""
    interface: str = ""
    """The network interface whose bytes and packets are counted; empty on one host."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One progress record of a rank."""

    stage: Stage
    """The stage that the rank is in."""
    step: int
    """Number of finished training steps; of finished measurements in a ``SweepJob``."""
    at: float
    """Unix time of the record."""
    limit_seconds: float
    """Maximum time until the rank's next record."""


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that ended a rank."""

    rank: int
    host: str
    at: float
    """Unix time of the exception."""
    message: str
    where: str = ""
    """The "file:line" that caused the exception."""
    traceback: str = ""


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """How the process of a rank exited, as its witness reported."""

    pid: int
    time: float
    """Unix time of the exit."""
    status: int | None
    """The exit status, or None if a signal killed the process."""
    signal: int | None
    """Number of the signal that killed the process, or None."""
    ended_by: Literal["", "signal", "lease"] = ""
    """Why the witness ended the process: it got a signal, or the lease expired. Empty if it did not."""
    stopped: bool = False
    """Whether the process was stopped, as by SIGSTOP, when it exited or about 2 s before."""


def read_job(files: LaunchFiles) -> Job | SweepJob:
    """Read the job of a launch: training, or timing collectives.

    Raises:
        OutputError: the file cannot be read, or is not of this version.
    """
    return read_json(files.job, cast("type[Job | SweepJob]", Job | SweepJob))


def open_progress(files: LaunchFiles, rank: int) -> BinaryIO:
    """Open a rank's progress file for appending without a buffer."""
    return files.progress(rank).open("ab", buffering=0)


def read_progress(files: LaunchFiles, rank: int) -> Progress | None:
    """Return a rank's latest whole progress record; None before the first, or if the file cannot be read."""
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
    """A launch that is planned, and not started yet."""

    number: int
    """Number of the launch in the whole run, from 1."""
    round: int
    """Number of its round, from 1."""
    arm: Arm
    group: str = ""
    """The group whose collectives are timed without training; empty for a training."""

    @property
    def label(self) -> str:
        """Return the group's name, or the arm's label for a training, as a user writes it."""
        return self.group or self.arm.label


Proof: TypeAlias = Literal["brief", "whole"]
"""Which parity check a launch has: ``brief`` in a run, ``whole`` in ``compare verify``."""

PASSES: dict[Proof, tuple[PassKind, ...]] = {
    "brief": ("float64",),
    "whole": ("float64", "float32", "as run"),
}
STEPS = 20
"""Number of steps in a pass of the parity check; more steps would amplify rounding."""
