"""Define the schema of a run and of its ranks' results.

A run holds raw samples, from which ``compare.analysis`` derives all figures. Names contain the unit: times
are in seconds, sizes in bytes, and raw clock readings in whole nanoseconds. docs/results.md describes the
fields of ``results.json`` whose names do not say it all.
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
from compare.schema.memory import ModelParameter, Unfit
from compare.schema.parity import EndStep, Fingerprint, ParityPass
from compare.system.files import LARGEST

SCHEMA_VERSION = 3
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A number of things, bytes or nanoseconds, from 0 to ``LARGEST``; a file with any other is refused."""
Difference: TypeAlias = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
"""A difference of two readings of a clock or counter, which may be below zero.

For example, a gradient may be ready before the last forward pass, or a kernel may correct its count.
"""
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
"""A number of things, bytes or nanoseconds, from 1 to ``LARGEST``; a file with any other is refused."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the trained model on one rank's part of the test set."""

    correct: float | None
    """Number of right answers; for a user's own workload, the sum of its metric, or None without one."""
    samples: Count
    loss_sum: float | None
    """Sum of the loss over the samples; None if it is not finite, because the training diverged."""


Mode = Literal["training", "reference"]
"""The model that a block trains: that of the arm, or a second one in the process, without synchronisation."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps of one rank that are timed together."""

    mode: Mode = "training"
    steps: Positive
    wall_ns: Positive
    cpu_ns: Count
    """CPU time of the rank during the block, summed over its threads."""
    phases: dict[str, list[Count]] = {}
    """Nanoseconds of each phase in every step of the block, by the phase's name.

    Names are ``forward``, ``backward``, ``sync`` and ``step``, but some strategies lack one. It is empty if
    phases are not timed.
    """
    turn: Count = 0
    """Number of the turn, a time in which no other arm trains, from 1; 0 in a launch without turns."""


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a host during the measurement, as the first rank there read it."""

    wall_ns: Positive
    cpus: Positive
    """Number of CPUs that the ranks may use."""
    busy_ns: Difference
    """Time in which these CPUs were not idle, added up over the CPUs."""
    stolen_ns: Difference
    """The part of ``busy_ns`` that other virtual machines on the same hardware took."""
    processes_ns: Difference | None = None
    """The part of ``busy_ns`` outside interrupts, by the kernel's samples; None in older results.

    The kernel handles most packets between the hosts of a rehearsal in interrupts.
    """
    boot_id: str = ""
    """Boot id of the kernel; hosts with the same id are one machine. It is empty in older results."""


class Moments(msgspec.Struct, frozen=True):
    """Seconds from the start of a launch to stages of a rank; the last two exclude the parity check."""

    started: float
    data_ready: float
    joined: float
    replica_ready: float
    first_step_done: float


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The times of all-reduces of one size, which are measured without training."""

    message_bytes: Count
    ns: Annotated[list[Positive], msgspec.Meta(min_length=1)]
    """Nanoseconds of an all-reduce, one number for each sample."""


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that one training step asked torch.distributed for."""

    collective: str
    """Its name, such as ``all_gather``, as in ``ringside collectives``."""
    message_bytes: Count
    """The size of the larger of a rank's two buffers."""
    ranks: list[Count] = []
    """The ranks that take part; empty if all do."""


class GradientTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times at which the gradient of one parameter is ready, in steps without synchronisation."""

    gradient_bytes: Count
    ready_ns: Annotated[list[Difference], msgspec.Meta(min_length=1)]
    """Nanoseconds from the end of the last forward pass until the gradient is ready, for each step."""


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one rank, and the facts that it reports about what ran."""

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
    """Largest resident set of the process in the arm's training, without parity check and reference."""
    whole_peak_memory_bytes: Count = 0
    """Largest resident set of the process, with parity check and reference; 0 in older results."""
    peak_device_memory_bytes: Count | None
    """Most bytes of tensors on the GPU, before the reference was made; None on a CPU."""
    gradient_bytes: Count
    gradient_tensors: Count
    message_bytes: list[Count]
    """The bytes of each call that averages gradients in one step, or of each one in ``calls``."""
    calls: list[StepCall] = []
    """The collectives of one step in their order, recorded where a step calls several kinds.

    The list is empty for other arms, and in older results.
    """
    collective_ns: list[Positive]
    """Nanoseconds of all collectives of a step, run without training, for each sample.

    The list is empty if the collectives cannot run without training.
    """
    sweep: list[Sweep] = []
    """The times of the group's all-reduce at several sizes; empty if the strategy bypasses the group."""
    gradients: list[GradientTimes] = []
    """The times at which the reference's gradients are ready, in the order of the parameters.

    It is empty for an arm without a reference, and in older results.
    """
    cpu_ns: Difference
    """CPU time of this rank from the first block to the last, without its waits for turns."""
    waited_ns: Count = 0
    """Time for which this rank waited for its turns."""
    waited_cpu_ns: Difference = 0
    """CPU time of this rank's threads while it waited for its turns."""
    trained_steps: Count = 0
    """Number of steps that this rank took; those beyond ``config.total_steps`` only serve timing."""
    machine: MachineUse | None = None
    """Load of the host, on the host's first rank; None on its other ranks."""
    moments: Moments
    parity: list[ParityPass] = []
    """The passes of the parity check: empty in the control, and if the training repeats a proven one."""
    end: EndStep | None = None
    """The step after the training that was compared; None in the control, and in older results."""
    unmoved: list[str] = []
    """Names of the trainable parameters that the training did not change; empty on ranks other than 0."""
    parameters: list[ModelParameter] = []
    """The whole model's parameters in order; empty on ranks other than 0, and in older results."""
    sketch: list[float] = []
    """A random projection of the change of all parameters; empty on ranks other than 0.

    The projection is the same for all arms, so two sketches are about as far apart as the parameters.
    """
    attestation: dict[str, Any]
    """Facts about what ran, read back from the libraries and the kernel."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Return the hashes of the model before and after this rank's training.

        The result is None if the training diverged, because all diverged models are alike.
        """
        if self.evaluation.loss_sum is None:
            return None
        return Fingerprint(self.initial_hash, self.final_hash, self.buffer_hash)


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of how a launch was started, and how long it took."""

    number: int
    """Number of the launch in the run, from 1."""
    round: int
    arm: str
    """Label of the arm."""
    launcher: str
    argv: list[list[str]]
    """The command lines that were executed."""
    environment: dict[str, str]
    """The variables that Ringside set for the ranks."""
    inherited: dict[str, str] = {}
    """The settings of libraries that the launch took from the user's own environment."""
    started_at: float
    """Unix time of the start."""
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    """The time for which the launcher ran."""
    started_alone: bool = True
    """Whether no other launch started at the same time; True in older results."""
    restarted_because: str = ""
    """Why the arm was launched a second time; empty if it was not."""


class Launch(LaunchRecord, frozen=True, kw_only=True):
    """One successful launch of an arm, with one result from every rank."""

    ranks: list[RankResult]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a run stopped early, or why a launch failed."""

    arm: str
    """Label of the arm, or name of the group in ``ringside collectives``."""
    round: int
    kind: str
    """Name of the error's class, such as ``StalledError``."""
    message: str

    @property
    def what(self) -> str:
        """Return the first line of the message, with the arm and the round before it unless it names them."""
        first, place = self.message.splitlines()[0], f"{self.arm}, round {self.round}"
        return first if first.startswith(place) else f"{place}: {first}"


def exit_code_of(failures: Iterable[Failure]) -> int:
    """Return the exit code for failed launches: that of a stall if there is one, and 0 without failures."""
    kinds = {failure.kind for failure in failures}
    if not kinds:
        return 0
    return StalledError.exit_code if StalledError.__name__ in kinds else LaunchError.exit_code


class Interleaved(msgspec.Struct, frozen=True, kw_only=True):
    """The order in which the arms of a round were measured, and the reason for it."""

    mode: Literal["blocks", "launches"]
    """``blocks`` if the arms took turns, and ``launches`` if one launch followed another."""
    why: str = ""
    """Why the arms could not take turns, if the user left the choice to Ringside; otherwise empty."""


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
    """The network over which the ranks of all arms communicate."""
    cores: Positive
    """Number of CPUs that the ranks of a host may use, on the host that has the fewest."""
    cores_by_host: list[Positive] = []
    """Number of CPUs that the ranks of each host may use, in the order of ``hosts``; empty if older."""
    left_out: dict[str, str] = {}
    """Why backends that the user did not name cannot run, by the backend's name."""
    unfit: list[Unfit] = []
    """The arms that did not fit into memory. ``config.arms`` has only the others."""
    bare: list[Unfit] = []
    """The arms that fit only in bare launches, which train without a proof and a reference beside them."""
    interleaved: Interleaved = Interleaved(mode="launches")
    launches: list[Launch] = []
    """The launches that count, in order of time."""
    discarded: list[Launch] = []
    """The launches of noisy rounds that were repeated, and of a last round that the budget cut short."""
    complete: bool = False
    """Whether everything that the user asked for was measured."""
    failure: Failure | None = None
    """Why the run stopped early; None if it did not."""

    def of(self, arm: Arm) -> list[Launch]:
        """Return the launches of one arm that count, in order of time."""
        return [launch for launch in self.launches if launch.arm == arm.label]

    def is_bare(self, arm: Arm) -> bool:
        """Return whether the launches of an arm are bare, so that its training is not proven."""
        return any(unfit.arm.label == arm.label for unfit in self.bare)

    def proven(self, arm: Arm) -> list[Fingerprint]:
        """Return the ranks' fingerprints, in order, that all launches of an arm have in common.

        The list is empty before the first launch, and if two launches differ or one diverged. Then every
        launch needs a proof of its own. It is empty for bare launches, too, which have none.
        """
        if self.is_bare(arm):
            return []
        distinct = {tuple(rank.fingerprint for rank in launch.ranks) for launch in self.of(arm)}
        (common,) = distinct if len(distinct) == 1 else ((),)
        return [] if None in common else list(filter(None, common))


Outcome: TypeAlias = Literal["passed", "failed", "exempt", "nothing", "incomparable", "unfit"]
"""The outcome of a gate, which is one check of an arm.

``exempt`` means that the gate does not apply to the arm. ``nothing`` means that a wrong step would have
passed as well, so the gate proves nothing. ``incomparable`` means that a single process takes no such step,
or lacks what the step remembers. ``unfit`` means that the check did not fit into memory.
"""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of an arm; a failed one has the three parts of an error."""

    name: Literal["ranks", "samples", "float64", "float32", "end"]
    outcome: Outcome
    figure: float | None = None
    """The relative difference that was measured; None if the gate has none, or it is not a number."""
    limit: float | None = None
    """The largest ``figure`` that passes; None if the gate has no limit."""
    what: str = ""
    """What failed, why the arm is exempt or unproven, or what a passed gate does not prove."""
    found: str = ""
    """What was found if the gate failed; otherwise usually empty."""
    remedy: str = ""
    """What the user can do if the gate failed; otherwise usually empty."""


class ArmVerification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``ringside verify`` for one arm."""

    arm: str
    gates: list[Gate] = []
    curve: list[float | None] = []
    """The relative difference from a single process after each step of the pass ``as run``.

    It decides nothing, because rounding alone can make it large. It is empty for the control.
    """
    failure: Failure | None = None
    """Why the launch of the arm failed; None if it did not, so that there are gates."""
    seconds: float

    @property
    def refuted(self) -> bool:
        """Return whether the arm's launch or one of its gates failed."""
        return self.failure is not None or any(gate.outcome == "failed" for gate in self.gates)

    @property
    def unproven(self) -> Gate | None:
        """Return the first gate that is ``nothing``, ``incomparable`` or ``unfit``; None if there is none."""
        unproven = {"nothing", "incomparable", "unfit"}
        return next((gate for gate in self.gates if gate.outcome in unproven), None)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result of ``ringside verify``."""

    run: Run
    """The settings and launches, in the form of a run."""
    arms: list[ArmVerification] = []

    @property
    def exit_code(self) -> int:
        """Return the exit code: for a failed gate, a failed launch, an unproven arm, or 0, in this order."""
        if any(gate.outcome == "failed" for arm in self.arms for gate in arm.gates):
            return ParityError.exit_code
        unproven = UnprovenError.exit_code if any(arm.unproven for arm in self.arms) else 0
        return exit_code_of(arm.failure for arm in self.arms if arm.failure) or unproven
