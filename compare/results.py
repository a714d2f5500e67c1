"""What a rank reports and what a run is: the versioned schema of ``results.json``, in and out.

Raw samples are kept and everything else is derived from them (``stats.py``). Seconds and bytes, with
the unit in the name; raw clock readings are whole nanoseconds. ``docs/results.md`` describes every field.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from compare.arms import Arm
from compare.config import RunConfig
from compare.data import DatasetSource
from compare.errors import OutputError, UsageError
from compare.hostfile import Host
from compare.network import Network

SCHEMA_VERSION = 2
RESULTS_FILE = "results.json"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's share of the test set, seen by the model it ended with."""

    correct: int
    samples: int
    loss_sum: float | None
    """None where it is not a number any more: the training has diverged."""


Mode = Literal["training", "reference"]
"""``reference``: a replica of its own that trains without any synchronisation, in the same process."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A run of steps measured as one, on one rank."""

    mode: Mode = "training"
    steps: int
    wall_ns: int
    cpu_ns: int
    """CPU time of the rank meanwhile, all threads together."""
    phases: dict[str, list[int]] = {}
    """Nanoseconds of every phase in every step, where they were timed: such a block is no headline."""


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a host was while its ranks were measured, as the first of them saw it."""

    wall_ns: int
    cpus: int
    """CPUs that the ranks may use."""
    busy_ns: int
    """On all of these together, whoever used them."""
    stolen_ns: int
    """Of that, by other guests of the physical machine."""


class Moments(msgspec.Struct, frozen=True):
    """Seconds from the start of the launch to what a rank did on its way to the first step."""

    started: float
    data_ready: float
    joined: float
    replica_ready: float
    first_step_done: float


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """An all-reduce of one size, alone, as often as it was timed."""

    message_bytes: int
    ns: list[int]


PassKind: TypeAlias = Literal["float64", "float32", "as run"]


class ParityPass(msgspec.Struct, frozen=True, kw_only=True):
    """A short training through the arm, beside a single process that sees all ranks' batches as one."""

    kind: PassKind
    """In float64 or float32 by plain SGD; ``as run`` in float32 with the run's own optimizer."""
    steps: int
    samples_per_rank: int
    """In a step."""
    optimizer: str
    learning_rate: float
    hash: str
    """SHA-256 over the parameters' bytes after the last step."""
    share_of_first_update: float | None
    """How much of the single process's first update this rank made: 1 is right, 0 is none at all."""
    differences: list[float | None]
    """Relative difference of the parameters from the single process's after each step; on ranks other
    than 0 after the first alone. None where it is not a number."""
    seconds: float


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured, ended with, and attests."""

    rank: int
    local_rank: int
    host: str
    pid: int
    blocks: list[Block]
    initial_hash: str
    final_hash: str
    """SHA-256 over the parameters' bytes."""
    evaluation: Evaluation
    peak_memory_bytes: int
    peak_device_memory_bytes: int | None
    gradient_bytes: int
    gradient_tensors: int
    message_bytes: list[int]
    """What is handed over to be averaged in every step, call by call."""
    collective_ns: list[int]
    """A step's collectives alone, without any training, call by call; empty where they cannot be."""
    sweep: list[Sweep] = []
    """The group's all-reduce over sizes; empty where the strategy goes past its group."""
    cpu_ns: int
    """CPU time of this rank while it was measured."""
    machine: MachineUse | None = None
    """From the first rank of a host."""
    moments: Moments
    parity: list[ParityPass] = []
    """Taken before the training; none in the control, whose ranks train apart by declaration."""
    attestation: dict[str, Any]
    """What really ran, read back from the libraries and the kernel."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One start of an arm that ended well: exactly one result from every rank."""

    number: int
    round: int
    arm: str
    launcher: str
    argv: list[list[str]]
    """The command lines that were executed."""
    environment: dict[str, str]
    """What was set for the ranks over the user's own environment."""
    inherited: dict[str, str] = {}
    """What the user's own environment held of settings for libraries, as it was left standing."""
    started_at: float
    seconds: float
    restarted_because: str = ""
    """Why it was launched a second time, if it was."""
    ranks: list[RankResult]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run stopped before its end."""

    arm: str
    round: int
    kind: str
    message: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison: what was asked, where it ran, and everything that was measured."""

    schema_version: int = SCHEMA_VERSION
    ringside_version: str
    started_at: str
    """ISO 8601, with the zone."""
    command: list[str]
    config: RunConfig
    dataset: DatasetSource
    hosts: list[Host]
    network: Network = Network()
    """How the ranks of all arms reached each other."""
    cores: int
    """CPUs that the ranks of one host may use."""
    left_out: dict[str, str] = {}
    """Backends that were not asked for by name and could not run, with the reason."""
    launches: list[Launch] = []
    """Those that count."""
    set_aside: list[Launch] = []
    """Whole rounds that were taken again, because others used the machine meanwhile."""
    complete: bool = False
    failure: Failure | None = None

    def of(self, arm: Arm) -> list[Launch]:
        """Return the launches of one arm, in the order of rounds."""
        return [launch for launch in self.launches if launch.arm == arm.label]


T = TypeVar("T")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON so that a reader sees the old file or the new one, never half of it.

    Raises:
        OutputError: the folder is gone, read-only or full.
    """
    _replace(path, msgspec.json.format(msgspec.json.encode(value), indent=1))


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that nobody but its owner can ever read.

    Raises:
        OutputError: it is there already, or the folder takes no more writing.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"{path} could not be written.", found=error.strerror or str(error)) from None


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all.

    Raises:
        OutputError: the folder is gone, read-only or full.
    """
    _replace(path, text.encode())


def _replace(path: Path, data: bytes) -> None:
    try:
        if path.exists() and not path.is_file():
            # /dev/stdout, say: a file renamed over it would take it from everybody.
            path.write_bytes(data)
            return
        target = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), _permissions())
                file.write(data)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink()
            raise
    except OSError as error:
        raise OutputError(
            f"{path} could not be written.",
            found=error.strerror or str(error),
            remedy="Free some space or choose another folder with --output.",
        ) from None


def _permissions() -> int:
    """Return what the umask leaves to a new file; mkstemp would keep it from everybody else."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def read_json(path: Path, kind: type[T]) -> T:
    """Read a value that ``write_json`` wrote.

    Raises:
        OutputError: the file is missing, unreadable, or not of this schema.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise OutputError(f"{path} could not be read.", found=error.strerror or str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
        raise OutputError(
            f"{path} is not a file that this version of Ringside understands.",
            found=str(error),
            remedy="Was it cut short, or written by another version?",
        ) from None


def results_file(path: Path) -> Path:
    """Return the file that holds a run: the path itself, or what lies in that folder."""
    return path / RESULTS_FILE if path.is_dir() else path


def read_run(path: Path) -> Run:
    """Read a run from its directory, or from its results file.

    Raises:
        OutputError: there is no run, or it was written under another schema.
    """
    file = results_file(path)
    if not file.exists():
        raise OutputError(
            f"There is no run at {path}.",
            found=f"{file} does not exist.",
            remedy="Give the folder that `compare run` named, or its results.json.",
        )

    class _Version(msgspec.Struct):
        schema_version: int = 0

    version = read_json(file, _Version).schema_version
    if version != SCHEMA_VERSION:
        raise OutputError(
            f"{file} has schema version {version}.",
            found=f"This version of Ringside reads schema version {SCHEMA_VERSION}.",
            remedy="Read it with the version that wrote it.",
        )
    return read_json(file, Run)
