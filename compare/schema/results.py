"""Define the schema of a run and of a rank's results.

A run holds raw samples, from which ``compare.analysis`` derives all figures. Times are seconds and sizes are
bytes, with the unit in the name; raw clock readings are whole nanoseconds. docs/results.md describes every
field of ``results.json``.
"""

from __future__ import annotations

from collections.abc import Iterable
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
"""A number of things, bytes or nanoseconds, from 0 to ``LARGEST``; a file with any other is refused."""
Difference: TypeAlias = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
"""A difference of two readings, which may be below zero.

For example, an earlier pass makes a gradient ready before the last forward pass, or a kernel corrects what
it has counted.
"""
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
"""A number of things, bytes or nanoseconds, from 1 to ``LARGEST``; a file with any other is refused."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The final model's result on one rank's share of the test set."""

    correct: float | None
    """Number of right answers. For an own workload it is the sum of its metric, or None without a metric."""
    samples: Count
    loss_sum: float | None
    """Sum of the loss over the samples; None if it is not finite, because the training diverged."""


Mode = Literal["training", "reference"]
"""What a block trains: the arm itself, or a second replica in the process that never synchronises."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps of one rank, timed together."""

    mode: Mode = "training"
    steps: Positive
    wall_ns: Positive
    cpu_ns: Count
    """CPU time of the rank during the block, summed over its threads."""
    phases: dict[str, list[Count]] = {}
    """Nanoseconds of forward, backward, sync and step in every step, by these names of the phases.

    Strategies that do not separate the forward pass have no ``forward``. Empty unless timed by phases.
    """
    turn: Count = 0
    """Number of the turn, from 1; 0 in a launch without turns."""


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a host was during the measurement, as its first rank read it."""

    wall_ns: Positive
    cpus: Positive
    """Number of CPUs that the ranks may use."""
    busy_ns: Difference
    """Time in which these CPUs were not idle, summed over them."""
    stolen_ns: Difference
    """The part of ``busy_ns`` that other guests of the physical machine took."""
    boot_id: str = ""
    """Id of the running kernel; hosts with the same one are one machine. Empty in older results."""


class Moments(msgspec.Struct, frozen=True):
    """Seconds from a launch's start to each stage of a rank; the last two leave out the proof."""

    started: float
    data_ready: float
    joined: float
    replica_ready: float
    first_step_done: float


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Times of all-reduces of one size, measured without training."""

    message_bytes: Count
    ns: Annotated[list[Positive], msgspec.Meta(min_length=1)]
    """Nanoseconds of one all-reduce, for each sample."""


class GradientTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When the gradient of one parameter is ready, in steps without synchronisation."""

    gradient_bytes: Count
    ready_ns: Annotated[list[Difference], msgspec.Meta(min_length=1)]
    """Nanoseconds from the end of the last forward pass to the gradient, for each step."""


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured, and what it attests."""

    rank: int
    local_rank: int
    host: str
    pid: int
    blocks: list[Block]
    initial_hash: str
    """SHA-256 over the bytes of all parameters before the first step."""
    final_hash: str
    """SHA-256 over the bytes of all parameters after the last step."""
    buffer_hash: str = ""
    """SHA-256 over the bytes of all buffers; empty without buffers, and in older results."""
    evaluation: Evaluation
    peak_memory_bytes: Count
    """Largest resident set of this process before the reference existed, without the proof."""
    whole_peak_memory_bytes: Count = 0
    """Largest resident set of this process in all, with proof and reference; 0 in older results."""
    peak_device_memory_bytes: Count | None
    """Largest number of bytes of tensors on the GPU before the reference existed; None on a CPU."""
    gradient_bytes: Count
    gradient_tensors: Count
    message_bytes: list[Count]
    """Bytes of each call that averages gradients, for the calls of one step."""
    collective_ns: list[Positive]
    """Nanoseconds of one step's collectives without training, for each sample.

    The list is empty if the collectives cannot run without training.
    """
    sweep: list[Sweep] = []
    """The group's all-reduce over sizes; empty if the strategy bypasses the group."""
    gradients: list[GradientTimes] = []
    """When the reference's gradients are ready, in the order of the parameters.

    Empty for an arm without a reference, and in older results.
    """
    cpu_ns: Difference
    """CPU time of this rank from the first block to the last, without its waits for turns."""
    waited_ns: Count = 0
    """Time that this rank waited for its turns."""
    waited_cpu_ns: Difference = 0
    """CPU time of this rank's threads while it waited for its turns."""
    trained_steps: Count = 0
    """Number of steps that this rank took. Those beyond ``config.total_steps`` are for timing only."""
    machine: MachineUse | None = None
    """Load of the host, on its first rank; None on the others."""
    moments: Moments
    parity: list[ParityPass] = []
    """The passes of the proof: empty in the control, and where the training repeats a proven one."""
    end: EndStep | None = None
    """The step that was compared after the training; None in the control, and in older results."""
    unmoved: list[str] = []
    """Names of trainable parameters that ended as they started, bit for bit; empty on ranks other than 0."""
    sketch: list[float] = []
    """A random projection of what the training changed; empty on ranks other than 0.

    The projection is the same for all arms, so two sketches are about as far apart as the parameters.
    """
    attestation: dict[str, Any]
    """What ran, read back from the libraries and the kernel."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Return the hashes of what this rank's training began and ended with.

        None if the training diverged, because all diverged models are alike.
        """
        if self.evaluation.loss_sum is None:
            return None
        return Fingerprint(self.initial_hash, self.final_hash, self.buffer_hash)


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a launch was started, and how long it took."""

    number: int
    """Number of the launch in the run, from 1."""
    round: int
    arm: str
    """Label of the arm."""
    launcher: str
    argv: list[list[str]]
    """The command lines that were executed."""
    environment: dict[str, str]
    """Variables that Ringside set for the ranks."""
    inherited: dict[str, str] = {}
    """Settings of libraries that the launch took from the user's own environment."""
    started_at: float
    """Unix time."""
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    """How long the launcher ran."""
    started_alone: bool = True
    """Whether no other launch started at the same time; True in older results."""
    restarted_because: str = ""
    """Why the arm was launched a second time; empty if it was not."""


class Launch(LaunchRecord, frozen=True, kw_only=True):
    """One successful launch of an arm, with one result from every rank."""

    ranks: list[RankResult]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run stopped early, or a launch failed."""

    arm: str
    """Label of the arm, or name of the group in ``compare collectives``."""
    round: int
    kind: str
    """Name of the error's class."""
    message: str


def exit_code_of(failures: Iterable[Failure]) -> int:
    """Return the exit code for launches that failed: that of a stalled one first, and 0 without any."""
    kinds = {failure.kind for failure in failures}
    if not kinds:
        return 0
    return StalledError.exit_code if StalledError.__name__ in kinds else LaunchError.exit_code


class Interleaved(msgspec.Struct, frozen=True, kw_only=True):
    """How the arms of a round ran, and why."""

    mode: Literal["blocks", "launches"]
    """``blocks``: in turns, side by side. ``launches``: one launch after another."""
    why: str = ""
    """Why the arms could not run in turns, if the user left it open; otherwise empty."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole comparison: its settings, its hosts and all measurements."""

    schema_version: int = SCHEMA_VERSION
    ringside_version: str
    started_at: str
    """Start of the command, in ISO 8601 with the time zone."""
    command: list[str]
    config: RunConfig
    dataset: DatasetSource
    hosts: Annotated[list[Host], msgspec.Meta(min_length=1)]
    network: Network = Network()
    """How the ranks of all arms reach each other."""
    cores: Positive
    """Number of CPUs that a host's ranks may use; the minimum of all hosts."""
    cores_by_host: list[Positive] = []
    """Number of CPUs that each host's ranks may use, in the order of ``hosts``; empty in older results."""
    left_out: dict[str, str] = {}
    """Backends that cannot run and that the user did not name, each with the reason."""
    interleaved: Interleaved = Interleaved(mode="launches")
    launches: list[Launch] = []
    """The launches that count, in the order of time."""
    discarded: list[Launch] = []
    """Launches of noisy rounds that were repeated, and of a last round that the budget cut short."""
    complete: bool = False
    """Whether everything that the user asked for was measured."""
    failure: Failure | None = None
    """Why the run stopped early; None if it did not."""

    def of(self, arm: Arm) -> list[Launch]:
        """Return the launches of one arm that count, in the order of time."""
        return [launch for launch in self.launches if launch.arm == arm.label]

    def proven(self, arm: Arm) -> list[Fingerprint]:
        """Return the fingerprint of each rank that all launches of an arm have in common.

        The list is empty before the first launch, and if two launches differ or one diverged. Then every
        launch needs a proof of its own.
        """
        found = {tuple(rank.fingerprint for rank in launch.ranks) for launch in self.of(arm)}
        (common,) = found if len(found) == 1 else ((),)
        return [] if None in common else list(filter(None, common))


Outcome: TypeAlias = Literal["passed", "failed", "exempt", "nothing", "incomparable"]
"""How a gate ended.

``exempt``: the gate does not apply to the arm. ``nothing``: a wrong step would have passed as well, so the
gate proves nothing. ``incomparable``: a single process takes no such step, or lacks what the step remembers.
"""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of an arm; a failure has the three parts of an error."""

    name: Literal["ranks", "samples", "float64", "float32", "end"]
    outcome: Outcome
    figure: float | None = None
    """The relative difference that was found; None if there is none, or if it is not a number."""
    limit: float | None = None
    """The largest ``figure`` that passes; None if there is none."""
    what: str = ""
    """What failed, why an arm is exempt or unproven, or what a passed gate leaves open."""
    found: str = ""
    remedy: str = ""


class ArmVerification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``compare verify`` for one arm."""

    arm: str
    gates: list[Gate] = []
    curve: list[float | None] = []
    """Relative difference from a single process after each step of the pass ``as run``.

    It decides nothing, because rounding alone can make it large. Empty for the control.
    """
    failure: Failure | None = None
    """Why the arm's launch failed; None if there are gates."""
    seconds: float

    @property
    def refuted(self) -> bool:
        """Return whether the arm's launch or one of its gates failed."""
        return self.failure is not None or any(gate.outcome == "failed" for gate in self.gates)

    @property
    def unproven(self) -> Gate | None:
        """Return the first gate that proves nothing or compares nothing; None if there is none."""
        return next((gate for gate in self.gates if gate.outcome in {"nothing", "incomparable"}), None)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result of ``compare verify``, with the run that holds its launches."""

    run: Run
    arms: list[ArmVerification] = []

    @property
    def exit_code(self) -> int:
        """Return the exit code for a failed gate, else a failed launch, else an unproven arm, else 0."""
        if any(gate.outcome == "failed" for arm in self.arms for gate in arm.gates):
            return ParityError.exit_code
        unproven = UnprovenError.exit_code if any(arm.unproven for arm in self.arms) else 0
        return exit_code_of(arm.failure for arm in self.arms if arm.failure) or unproven
