"""What a rank reports and what a run is: the versioned schema of ``results.json``, in and out.

Raw samples are kept and everything else is derived from them (``stats.py``). Seconds and bytes, with
the unit in the name; raw clock readings are whole nanoseconds. ``docs/results.md`` describes every field.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias, TypeVar, cast

import msgspec

from compare.data import DatasetSource
from compare.errors import OutputError, UsageError, system_reason
from compare.launch.network import Network
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from compare.schema.hosts import Host

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA_VERSION = 2
RESULTS_FILE = "results.json"
VERIFICATION_FILE = "verification.json"
PHASES = {"forward", "backward", "sync", "step"}
"""Of a step, where they were timed."""


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
    error_of_first_update: float | None = None
    """How far this rank's first update is from the single process's, over the size of that (Euclidean norms
    over all parameters). None where it is not a number, and in results that are older than this field."""
    error_of_whole_update: float | None = None
    """The same of what all steps together have moved: 1 is as far off as not to have trained at all. None
    on ranks other than 0 as well."""
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
    """Largest resident set while it trained, before there was a reference."""
    whole_peak_memory_bytes: int = 0
    """The same of its whole life; 0 in results that are older than this field."""
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
    """CPUs that the ranks of one host may use; the fewest of all hosts."""
    cores_by_host: list[int] = []
    """The same of each; empty in results that are older than this field."""
    left_out: dict[str, str] = {}
    """Backends that were not asked for by name and could not run, with the reason."""
    launches: list[Launch] = []
    """Those that count."""
    set_aside: list[Launch] = []
    """Whole rounds that were taken again, because others used the machine meanwhile, and what there is of a
    last one that a budget cut short."""
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
        raise OutputError(f"{path} could not be written.", found=system_reason(error)) from None


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder for what nobody needs afterwards, and remove it then.

    Raises:
        OutputError: it cannot be made.
    """
    folder = make_temporary_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_temporary_folder(prefix: str, parent: Path | None = None) -> Path:
    """Make a folder under ``parent``, or wherever temporary files go; it stays.

    Raises:
        OutputError: it cannot be made.
    """
    with _told_of_no_room():
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


def temporary_file() -> BinaryIO:
    """Open a file that goes when it is closed.

    Raises:
        OutputError: it cannot be made.
    """
    with _told_of_no_room():
        return cast("BinaryIO", tempfile.TemporaryFile())


@contextmanager
def _told_of_no_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            "Nothing temporary can be written.",
            found=": ".join(str(part) for part in (error.filename, error.strerror or error) if part),
            remedy="Free some space there, or name another folder in TMPDIR.",
        ) from None


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
            Path(temporary).unlink(missing_ok=True)  # an interrupt may come after it was renamed
            raise
    except OSError as error:
        raise OutputError(
            f"{path} could not be written.",
            found=system_reason(error),
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
        raise OutputError(f"{path} could not be read.", found=system_reason(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, UsageError) as error:
        raise OutputError(
            f"{path} is not a file that this version of Ringside understands.",
            found=str(error),
            remedy="Was it cut short, or written by another version?",
        ) from None


class _Form(msgspec.Struct):
    """Just enough of a file to tell which of ours it is."""

    schema_version: int | None = None
    run: Any = None
    summary: Any = None
    arms: Any = None


class _Exported(msgspec.Struct):
    run: Run


def results_file(path: Path) -> Path:
    """Return the file that holds a run: the path itself, or what lies in that folder."""
    return path / RESULTS_FILE if path.is_dir() else path


def read_run(path: Path) -> Run:
    """Read a run from its directory, from its results file, or from what ``--export-json`` wrote of it.

    Raises:
        OutputError: there is no run, it was written under another schema, it contradicts itself, or it is
            a verification.
    """
    file = results_file(path)
    if not file.exists():
        if path.is_dir() and (path / VERIFICATION_FILE).exists():
            raise _verification(path / VERIFICATION_FILE)
        raise OutputError(
            f"There is no run at {path}.",
            found=f"{file} does not exist.",
            remedy="Give the folder that `compare run` named, or its results.json.",
        )
    form = read_json(file, _Form)
    exported = form.schema_version is None and isinstance(form.run, dict)
    if exported and form.summary is None and form.arms is not None:
        raise _verification(file)
    version = form.run.get("schema_version") if exported else form.schema_version
    if version != SCHEMA_VERSION:
        raise OutputError(
            f"{file} has schema version {version or 0}.",
            found=f"This version of Ringside reads schema version {SCHEMA_VERSION}.",
            remedy="Read it with the version that wrote it.",
        )
    run = read_json(file, _Exported).run if exported else read_json(file, Run)
    wrong = next(_contradictions(run), None)
    if wrong:
        raise OutputError(
            f"{file} does not hold a run as Ringside writes it.",
            found=wrong,
            remedy="Was it edited? Restore it, or run the comparison again.",
        )
    return run


def _verification(file: Path) -> OutputError:
    return OutputError(
        f"{file} is a verification, not a run.",
        found="`compare verify` tells whether arms train alike; it measures no speed that could be reported.",
        remedy="Read the file itself for its gates, or measure the arms with `compare run`.",
    )


# ---- what a file must agree on before anything is derived from it ----


def _contradictions(run: Run) -> Iterator[str]:
    """Name what no run holds, so that whatever is derived from one may rely on it."""
    labels = [arm.label for arm in run.config.arms]
    yield from _contradictions_of_config(run.config, labels)
    if run.cores_by_host and (len(run.cores_by_host) != len(run.hosts) or min(run.cores_by_host) < 1):
        yield f"It names {len(run.hosts)} hosts, and the cores of {len(run.cores_by_host)}."
    if not run.hosts or run.cores < 1:
        yield f"It names {len(run.hosts)} hosts of {run.cores} cores."
    seen: set[tuple[str, int]] = set()
    for launch in run.launches:
        where = f"Launch {launch.number} ({launch.arm}, round {launch.round})"
        if launch.arm not in labels:
            yield f"{where} is of none of the arms: {', '.join(labels)}."
        if (launch.arm, launch.round) in seen:
            yield f"{where} is there twice."
        seen.add((launch.arm, launch.round))
        yield from (f"{where}: {wrong}" for wrong in _contradictions_in(launch, run.config))


def _contradictions_of_config(config: RunConfig, labels: list[str]) -> Iterator[str]:
    if not labels:
        yield "config names no arms."
    if config.baseline not in labels:
        yield f"The baseline {config.baseline!r} is none of the arms: {', '.join(labels)}."
    if len(set(labels)) < len(labels):
        yield f"config names an arm twice: {', '.join(labels)}."
    if config.comparisons is None:
        return
    if not 1 <= config.comparisons <= config.rounds:
        yield f"{config.comparisons} comparisons cannot be made of {config.rounds} rounds."
    if len(labels) != 2:  # noqa: PLR2004 -- a comparison takes two
        yield f"A run of comparisons has two arms, this one {len(labels)}."


def _contradictions_in(launch: Launch, config: RunConfig) -> Iterator[str]:
    ranks = [rank.rank for rank in launch.ranks]
    if ranks != list(range(config.ranks)):
        yield f"has ranks {', '.join(map(str, ranks)) or 'none'}, where 0 to {config.ranks - 1} belong."
        return
    if launch.seconds <= 0:
        yield f"took {launch.seconds:g} s."
    first = launch.ranks[0]
    if sum(rank.evaluation.samples for rank in launch.ranks) < 1:
        yield "its ranks saw no sample of the test set."
    for rank in launch.ranks:
        yield from (f"rank {rank.rank} {wrong}" for wrong in _contradictions_of(rank))
        if _shape(rank) != _shape(first):
            yield f"rank {rank.rank} timed other blocks than rank 0."
        if _collectives(rank) != _collectives(first):
            yield f"rank {rank.rank} timed other collectives than rank 0."


def _contradictions_of(rank: RankResult) -> Iterator[str]:
    if not any(block.mode == "training" and not block.phases for block in rank.blocks):
        yield "has no block of the training that tells its speed."
    for number, block in enumerate(rank.blocks):
        yield from (f"has a block, number {number}, {wrong}" for wrong in _contradictions_of_block(block))
    if min(rank.collective_ns, default=1) < 1:
        yield "has a collective that took no time."
    if any(min(sweep.ns, default=0) < 1 for sweep in rank.sweep):
        yield "has a sweep that took no time."
    if rank.machine is not None and (rank.machine.cpus < 1 or rank.machine.wall_ns < 1):
        yield f"saw {rank.machine.cpus} CPUs for {rank.machine.wall_ns} ns."
    yield from _contradictions_of_attestation(rank.attestation)


def _contradictions_of_block(block: Block) -> Iterator[str]:
    if block.steps < 1 or block.wall_ns < 1:
        yield f"of {block.steps} steps in {block.wall_ns} ns."
    if block.phases and set(block.phases) != PHASES:
        yield f"with the phases {', '.join(block.phases)}."
    if any(len(times) != block.steps for times in block.phases.values()):
        yield f"whose phases were not timed in each of its {block.steps} steps."


def _contradictions_of_attestation(attestation: dict[str, Any]) -> Iterator[str]:
    group = attestation.get("group")
    if not isinstance(group, dict) or not isinstance(group.get("transport"), str):
        yield "attests no transport of its group (attestation.group.transport)."
    if not isinstance(attestation.get("replica", {}), dict):
        yield "attests a replica (attestation.replica) that is no object."


def _shape(rank: RankResult) -> list[tuple[Mode, int, list[str]]]:
    return [(block.mode, block.steps, sorted(block.phases)) for block in rank.blocks]


def _collectives(rank: RankResult) -> tuple[int, list[tuple[int, int]]]:
    return len(rank.collective_ns), [(sweep.message_bytes, len(sweep.ns)) for sweep in rank.sweep]
