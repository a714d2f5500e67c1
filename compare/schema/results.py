"""Define the schema of a run and of a rank's results.

A run holds raw samples, and ``compare.analysis`` derives all figures from them. Times are seconds and sizes
are bytes, with the unit in the name; raw clock readings are whole nanoseconds. ``docs/results.md`` describes
every field of ``results.json``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from compare.data.catalogue import DatasetSource
from compare.errors import LaunchError, ParityError, StalledError, UnprovenError
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from compare.schema.hosts import Host, Network
from compare.schema.parity import EndStep, Fingerprint, ParityPass
from compare.system.files import LARGEST

SCHEMA_VERSION = 3
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A number of things, bytes or nanoseconds; reading a file refuses another."""
Difference: TypeAlias = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
"""A difference of two readings, which may be below zero.

A gradient of an earlier pass is ready before the last forward pass, and a kernel may correct what it counts.
"""
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
"""Likewise, from 1."""
PHASES = {"forward", "backward", "sync", "step"}
"""The phases of a step; a fused step has no forward."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The final model's answers on one rank's share of the test set."""

    correct: float | None
    """Right answers, or the sum of an own metric; None without one."""
    samples: Count
    loss_sum: float | None
    """None if it is not a number: the training diverged."""


Mode = Literal["training", "reference"]
"""``reference``: a second replica in the process, which never synchronises."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps of one rank, timed together."""

    mode: Mode = "training"
    steps: Positive
    wall_ns: Positive
    cpu_ns: Count
    """CPU time of the rank during the block, all threads together."""
    phases: dict[str, list[Count]] = {}
    """Nanoseconds of every phase in every step; empty in most blocks."""
    turn: Count = 0
    """Number of the turn, from 1; 0 without turns."""


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a host was during the measurement, by its first rank."""

    wall_ns: Positive
    cpus: Positive
    """CPUs that the ranks may use."""
    busy_ns: Difference
    """Time in which these CPUs were not idle, all together."""
    stolen_ns: Difference
    """The part that other guests of the physical machine took."""
    boot_id: str = ""
    """Name of the running kernel, by which hosts are one machine.

    Empty in results without this field.
    """


class Moments(msgspec.Struct, frozen=True):
    """Seconds from a launch's start to each stage of a rank."""

    started: float
    data_ready: float
    joined: float
    replica_ready: float
    first_step_done: float


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Times of an all-reduce of one size, alone."""

    message_bytes: Count
    ns: Annotated[list[Positive], msgspec.Meta(min_length=1)]


class GradientTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When the gradient of one parameter is ready, without synchronisation."""

    gradient_bytes: Count
    ready_ns: Annotated[list[Difference], msgspec.Meta(min_length=1)]
    """Nanoseconds after the last forward pass, in each step."""


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured and attests."""

    rank: int
    local_rank: int
    host: str
    pid: int
    blocks: list[Block]
    initial_hash: str
    final_hash: str
    """SHA-256 over the parameters' bytes."""
    buffer_hash: str = ""
    """SHA-256 over the buffers' bytes; empty without any, and in older results."""
    evaluation: Evaluation
    peak_memory_bytes: Count
    """Largest resident set during training, before the reference existed."""
    whole_peak_memory_bytes: Count = 0
    """Largest resident set of its life; 0 in results without this field."""
    peak_device_memory_bytes: Count | None
    gradient_bytes: Count
    gradient_tensors: Count
    message_bytes: list[Count]
    """Bytes of each call that averages gradients in a step."""
    collective_ns: list[Positive]
    """A step's collectives without training, per sample; empty if impossible."""
    sweep: list[Sweep] = []
    """The group's all-reduce over sizes; empty if the strategy bypasses it."""
    gradients: list[GradientTimes] = []
    """Of the reference, parameter by parameter.

    Empty for an arm without one, and in older results.
    """
    cpu_ns: Difference
    """CPU time of this rank during the measurement, without its waits."""
    waited_ns: Count = 0
    """Time that it waited for its turns."""
    waited_cpu_ns: Difference = 0
    """CPU time that its threads took meanwhile."""
    trained_steps: Count = 0
    """Steps that it took; those beyond ``config.total_steps`` for timing only."""
    machine: MachineUse | None = None
    """Only on the first rank of a host."""
    moments: Moments
    parity: list[ParityPass] = []
    """Empty in the control, and where the training repeats that of a proven launch, bit for bit."""
    end: EndStep | None = None
    """Taken after the training; None in the control, and in results without this field."""
    unmoved: list[str] = []
    """Parameters that train, and that end as they started, bit for bit."""
    sketch: list[float] = []
    """A random projection of what the training changed, only on rank 0.

    It is the same projection for all arms. So the distance of two is about that of their parameters.
    """
    attestation: dict[str, Any]
    """What ran, read back from the libraries and the kernel."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Return what its training began and ended with.

        None if it diverged, because all such ends are alike.
        """
        if self.evaluation.loss_sum is None:
            return None
        return Fingerprint(self.initial_hash, self.final_hash, self.buffer_hash)


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a launch was started, and how long it took."""

    number: int
    round: int
    arm: str
    launcher: str
    argv: list[list[str]]
    """The command lines that were executed."""
    environment: dict[str, str]
    """Variables that Ringside set for the ranks."""
    inherited: dict[str, str] = {}
    """Settings of libraries from the user's own environment."""
    started_at: float
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    started_alone: bool = True
    """Whether no other launch started meanwhile."""
    restarted_because: str = ""
    """Why it was launched a second time, or empty."""


class Launch(LaunchRecord, frozen=True, kw_only=True):
    """One successful launch of an arm, with one result of every rank."""

    ranks: list[RankResult]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run stopped early."""

    arm: str
    round: int
    kind: str
    message: str


class Interleaved(msgspec.Struct, frozen=True, kw_only=True):
    """How the arms of a round ran, and why."""

    mode: Literal["blocks", "launches"]
    """In turns, side by side; or one launch after another."""
    why: str = ""
    """Why not in turns, if the user left it open."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison: its settings, its hosts and all measurements."""

    schema_version: int = SCHEMA_VERSION
    ringside_version: str
    started_at: str
    """ISO 8601 with zone."""
    command: list[str]
    config: RunConfig
    dataset: DatasetSource
    hosts: Annotated[list[Host], msgspec.Meta(min_length=1)]
    network: Network = Network()
    """How the ranks of all arms reach each other."""
    cores: Positive
    """CPUs that a host's ranks may use; the minimum of all hosts."""
    cores_by_host: list[Positive] = []
    """The same for each host; empty in results without this field."""
    left_out: dict[str, str] = {}
    """Reasons of backends that cannot run and that were not named."""
    interleaved: Interleaved = Interleaved(mode="launches")
    """How the arms of a round ran."""
    launches: list[Launch] = []
    """The launches that count."""
    discarded: list[Launch] = []
    """Noisy rounds that were repeated, and a round that the budget ended."""
    complete: bool = False
    failure: Failure | None = None

    def of(self, arm: Arm) -> list[Launch]:
        """Return the launches of one arm, in order of rounds."""
        return [launch for launch in self.launches if launch.arm == arm.label]

    def proven(self, arm: Arm) -> list[Fingerprint]:
        """Return the fingerprint of each rank that all launches of an arm have in common.

        It is empty before the first launch, and where two differ: then every launch needs a proof of its own.
        """
        found = {tuple(rank.fingerprint for rank in launch.ranks) for launch in self.of(arm)}
        (common,) = found if len(found) == 1 else ((),)
        return [] if None in common else list(filter(None, common))


Outcome: TypeAlias = Literal["passed", "failed", "exempt", "nothing", "incomparable"]
"""How a gate ended.

``nothing``: a wrong step would have passed as well, so nothing is proven. ``incomparable``: a single process
takes no such step, or cannot be given what the step remembers.
"""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate of an arm; a failure has an error's three parts."""

    name: Literal["ranks", "samples", "float64", "float32", "end"]
    outcome: Outcome
    figure: float | None = None
    """The relative difference; None for ``ranks``, or if not a number."""
    limit: float | None = None
    what: str = ""
    """What failed, why an arm is exempt, or what a passed gate leaves open."""
    found: str = ""
    remedy: str = ""


class ArmVerification(msgspec.Struct, frozen=True, kw_only=True):
    """The gates of one arm."""

    arm: str
    gates: list[Gate] = []
    curve: list[float | None] = []
    """Relative difference from a single process after each ``as run`` step.

    It is no gate, because rounding alone can make it large. Empty in the control.
    """
    failure: Failure | None = None
    """Why its launch failed, if there are no gates."""
    seconds: float

    @property
    def refuted(self) -> bool:
        """Return whether its launch or one of its gates failed."""
        return self.failure is not None or any(gate.outcome == "failed" for gate in self.gates)

    @property
    def unproven(self) -> Gate | None:
        """Return the gate that proves nothing, though none failed."""
        return next((gate for gate in self.gates if gate.outcome in {"nothing", "incomparable"}), None)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """A whole verification, with its launches."""

    run: Run
    arms: list[ArmVerification] = []

    @property
    def exit_code(self) -> int:
        """Return 0 if all is proven; failed gates precede failed launches, and these what is not proven."""
        if any(gate.outcome == "failed" for arm in self.arms for gate in arm.gates):
            return ParityError.exit_code
        kinds = [arm.failure.kind for arm in self.arms if arm.failure]
        if not kinds:
            return UnprovenError.exit_code if any(arm.unproven for arm in self.arms) else 0
        return StalledError.exit_code if StalledError.__name__ in kinds else LaunchError.exit_code
