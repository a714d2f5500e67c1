"""What a rank reports and what a run is: the versioned schema of ``results.json``, in and out.

Raw samples are kept and everything else is derived from them (``stats.py``). Seconds and bytes, with
the unit in the name; raw clock readings are whole nanoseconds. ``docs/results.md`` describes every field.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from compare.data.catalogue import DatasetSource
from compare.errors import LaunchError, ParityError, StalledError
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from compare.schema.hosts import Host, Network

SCHEMA_VERSION = 2
PHASES = {"forward", "backward", "sync", "step"}
"""Phases of a step, where they were timed. One that fuses forward and backward has no forward."""


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


# ---- what a file must agree on before anything is derived from it ----


class ArmVerification(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm fared."""

    arm: str
    gates: list[Gate] = []
    curve: list[float | None] = []
    """Relative difference from a single process after each float32 step with the run's own optimizer:
    no gate, for rounding alone may carry it far. Empty in the control."""
    failure: Failure | None = None
    """Why there are no gates: its launch failed."""
    seconds: float

    @property
    def proven(self) -> bool:
        """Whether it ran, and failed at nothing."""
        return self.failure is None and all(gate.outcome != "failed" for gate in self.gates)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """A whole verification, with the launches that it rests on."""

    run: Run
    arms: list[ArmVerification] = []

    @property
    def exit_code(self) -> int:
        """Return 0 where all is proven; a failed gate counts for more than a failed launch."""
        if any(gate.outcome == "failed" for arm in self.arms for gate in arm.gates):
            return ParityError.exit_code
        kinds = [arm.failure.kind for arm in self.arms if arm.failure]
        if not kinds:
            return 0
        return StalledError.exit_code if StalledError.__name__ in kinds else LaunchError.exit_code


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate, and how an arm fared at it. What failed is told in the words of an error."""

    name: Literal["ranks", "float64", "float32"]
    outcome: Literal["passed", "failed", "exempt"]
    figure: float | None = None
    """The relative difference that was found; None at the ranks' gate, or where it is not a number."""
    limit: float | None = None
    what: str = ""
    """What failed, or why an arm is exempt where that is neither the control nor lossy."""
    found: str = ""
    remedy: str = ""
