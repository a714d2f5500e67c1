"""Define the data that the parent, which runs the command, and its ranks exchange through files."""

from __future__ import annotations

from contextlib import suppress
from typing import BinaryIO, Literal, NamedTuple, TypeAlias, cast

import msgspec

from compare.data.catalogue import DatasetSource
from compare.schema.arms import Arm
from compare.schema.collectives import SweepConfig
from compare.schema.config import LaunchConfig, RunConfig
from compare.schema.launch_files import LaunchFiles
from compare.schema.memory import Shortage
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

``parity`` may also come after ``test``. ``turn`` means that the rank waits while ranks of other arms train.
"""
_LAST_BYTES = 4096


class LaunchJob(msgspec.Struct, frozen=True, kw_only=True, tag_field="work"):
    """The job that the parent writes into a file, and that every rank of a launch reads."""

    config: LaunchConfig
    arm: Arm
    affinity: list[int]
    """Numbers of the CPUs that every rank must be allowed to use."""
    number: int
    """Number of the launch in the run, from 1, which decides the order of its blocks."""
    launched_at: float
    """Unix time just before the parent started the launcher."""
    turns: str = ""
    """Folder of the ``TurnFiles`` on every host; empty if the launch takes no turns with others."""
    exported: list[str] = []
    """Names of the variables that the user set by ``-x``; their values are never saved."""


class Job(LaunchJob, frozen=True, kw_only=True, tag="training"):
    """The job of a launch that trains."""

    config: RunConfig
    dataset: DatasetSource
    proof: Proof = "brief"
    """The extent of the parity check, a key of ``PASSES``."""
    proven: dict[int, Fingerprint] = {}
    """The fingerprints that all proven launches of the arm have in common, by the numbers of the ranks.

    Another host than this machine gets those of its own ranks. A launch that ends with the same fingerprints
    is not proven again; any other is proven after its training. Without any, a launch is proven before it.
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
    """The stage in which the rank is."""
    step: int
    """Number of finished training steps, or of finished measurements if collectives are timed."""
    at: float
    """Unix time of the record."""
    limit_seconds: float
    """Maximum time until the rank's next record; a rank that exceeds it has stalled."""


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that ended a rank."""

    rank: int
    host: str
    at: float
    """Unix time of the exception."""
    message: str
    shortage: Shortage | None = None
    """The limit on memory that caused the exception; None if memory was not the cause."""
    where: str = ""
    """The "file:line" that caused the exception."""
    traceback: str = ""


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """How the process of a rank exited, as the rank's witness, its parent process, reported."""

    pid: int
    time: float
    """Unix time of the exit."""
    status: int | None
    """The exit status, or None if a signal killed the process."""
    signal: int | None
    """Number of the signal that killed the process, or None."""
    ended_by: Literal["", "signal", "lease"] = ""
    """Why the witness ended the process; empty if it did not.

    It received a signal, or the parent had not renewed the file ``lease`` of ``LaunchFiles`` in time.
    """
    shortage: Shortage | None = None
    """The limit on memory for which the kernel killed the process, or for which it may have aborted."""
    stopped: bool = False
    """Whether the process was stopped, for example by SIGSTOP, when it exited or about 2 s before."""


def read_job(files: LaunchFiles) -> Job | SweepJob:
    """Return the job of a launch, which trains or times collectives.

    Raises:
        OutputError: the file cannot be read, or is not of this version.
    """
    return read_json(files.job, cast("type[Job | SweepJob]", Job | SweepJob))


def open_progress(files: LaunchFiles, rank: int) -> BinaryIO:
    """Open a rank's progress file for appending without a buffer."""
    return files.progress(rank).open("ab", buffering=0)


def read_progress(files: LaunchFiles, rank: int) -> Progress | None:
    """Return the last progress record of a rank; None if there is none, or the file cannot be read."""
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


def append_progress(file: BinaryIO, progress: Progress) -> None:
    """Append a progress record with one system call."""
    file.write(msgspec.json.encode(progress) + b"\n")


class Planned(NamedTuple):
    """A launch that is planned but not started yet."""

    number: int
    """Number of the launch in the whole run, from 1."""
    round: int
    """Number of the launch's round, from 1."""
    arm: Arm
    group: str = ""
    """Name of the group whose collectives are timed without training; empty for a training."""

    @property
    def label(self) -> str:
        """Return the name of the group, or the label of the arm for a training, as a user writes it."""
        return self.group or self.arm.label


Proof: TypeAlias = Literal["none", "brief", "whole"]
"""The extent of a launch's parity check: ``brief`` in a run, and ``whole`` in ``ringside verify``.

``none`` is that of a bare launch. It has neither the check nor the reference nor what follows the test,
because these did not fit into memory.
"""

PASSES: dict[Proof, tuple[PassKind, ...]] = {
    "none": (),
    "brief": ("float64",),
    "whole": ("float64", "float32", "as run"),
}
"""The passes of each parity check, in order."""
STEPS = 20
"""Number of steps in a pass of the parity check; more steps would amplify rounding."""
