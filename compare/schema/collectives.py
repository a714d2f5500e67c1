"""Define the settings and the results of ``ringside collectives``.

``docs/results.md`` describes ``collectives.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from backends import GROUPS
from compare.errors import ParityError, UsageError
from compare.schema.arms import Arm
from compare.schema.config import LaunchConfig, LaunchFields, require, require_count
from compare.schema.hosts import Host, Network
from compare.schema.results import (
    Count,
    Difference,
    Failure,
    LaunchRecord,
    MachineUse,
    Positive,
    Run,
    exit_code_of,
)

COLLECTIVES_FILE = "collectives.json"
SWEEP_SCHEMA_VERSION = 1
ITERATION_SECONDS = 0.005
"""Minimum time of an iteration: shorter calls follow each other until they last so long."""
NONE = "none"
"""The operation of a collective that reduces nothing, and the dtype of a barrier."""


class Traits(NamedTuple):
    """The properties in which collectives differ from each other, as in nccl-tests."""

    reduces: bool = False
    """Whether the collective applies an operation, such as a sum."""
    divided: bool = False
    """Whether the larger of a rank's two buffers has one part for each rank."""
    rooted: bool = False
    """Whether the collective has a root, which is always rank 0."""
    empty: bool = False
    """Whether the collective carries no data."""
    memory: int = 6
    """Memory for a rank's buffers and the check of its result, as a multiple of the larger buffer.

    With two ranks and 256 MiB of float32, it was measured as 3.6 to 7.1 times the larger buffer.
    """


COLLECTIVES: dict[str, Traits] = {
    "all_reduce": Traits(reduces=True, memory=5),
    "all_gather": Traits(divided=True),
    "reduce_scatter": Traits(reduces=True, divided=True, memory=3),
    "broadcast": Traits(rooted=True, memory=5),
    "reduce": Traits(reduces=True, rooted=True, memory=3),
    "all_to_all": Traits(divided=True),
    "send_recv": Traits(),
    "barrier": Traits(empty=True, memory=0),
}
"""The collectives that can be timed, by name.

In ``send_recv`` each rank sends to the next one, and receives from the previous one.
"""
DTYPES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""The bytes of an element of each dtype; the dtypes are those of NCCL, by their names in torch."""
OPERATIONS = ("sum", "prod", "min", "max", "avg")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,12})([KMG]?)(?:i?B)?", re.IGNORECASE)
_MAXIMUM_BYTES = 1 << 36


def parse_size(flag: str, text: str) -> int:
    """Return the bytes of a size that is written as for nccl-tests: 8, 32K, 64M.

    K, M and G are 2^10, 2^20 and 2^30. The error names ``flag``.

    Raises:
        UsageError: ``text`` is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(
            f"{flag} cannot be {text!r}.", remedy="Use a number of bytes, such as 8, 32K or 64M."
        )
    return int(match[1]) * _UNITS[match[2].upper()]


def read_collective(text: str) -> str:
    """Return the name of a collective that a user may also write as ``all-reduce`` or ``AllReduce``.

    An unknown name is returned unchanged.
    """
    plain = re.sub(r"[-_/]", "", text.strip().lower())
    return next((name for name in COLLECTIVES if name.replace("_", "") == plain), text)


class Exchange(msgspec.Struct, frozen=True):
    """A collective with its dtype and its operation, which are ``none`` where it has none."""

    collective: str = "all_reduce"
    dtype: str = "float32"
    operation: str = "sum"

    @property
    def traits(self) -> Traits:
        """Return the properties of the collective."""
        return COLLECTIVES[self.collective]

    @property
    def root(self) -> int:
        """Return the root's rank, or -1 if the collective has no root."""
        return 0 if self.traits.rooted else -1

    def quantum(self, ranks: int) -> int:
        """Return the smallest size in bytes of the larger buffer; all other sizes are multiples of it.

        It is one element, or one for each rank if the buffer is divided. A barrier has no such size.
        """
        return DTYPES[self.dtype] * (ranks if self.traits.divided else 1)

    def count(self, message_bytes: int, ranks: int) -> int:
        """Return the number of elements in the smaller of a rank's two buffers; 0 for a barrier.

        ``message_bytes`` is the size of the larger buffer.
        """
        return 0 if self.traits.empty else message_bytes // self.quantum(ranks)

    def __str__(self) -> str:
        """Return the collective, dtype and operation with spaces between them, without those called none."""
        return " ".join(part for part in (self.collective, self.dtype, self.operation) if part != NONE)


class SweepFields(LaunchFields, total=False):
    """The fields of ``SweepConfig`` that a user may set before the hosts are known."""

    collectives: tuple[str, ...]
    dtypes: tuple[str, ...]
    operations: tuple[str, ...]
    begin_bytes: int
    end_bytes: int
    factor: int
    sizes: dict[str, tuple[int, ...]]
    iterations: int
    warmup_iterations: int
    rounds: int


class SweepConfig(LaunchConfig, frozen=True, kw_only=True):
    """All settings of ``ringside collectives``, which times collectives over a sweep of sizes."""

    groups: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """Names of the groups, which are keys of ``GROUPS``, in the user's order."""
    collectives: tuple[str, ...] = ("all_reduce",)
    dtypes: tuple[str, ...] = ("float32",)
    operations: tuple[str, ...] = ("sum",)
    begin_bytes: int = 8
    end_bytes: int = 64 << 20
    factor: int = 2
    sizes: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict[str, tuple[int, ...]])
    """Sizes of each collective in bytes, by its name, in place of those that the fields above give."""
    iterations: int = 5
    """Number of timed iterations of each size in each launch."""
    warmup_iterations: int = 1
    """Minimum number of untimed calls of each size before the first timed one."""
    rounds: int = 3
    """Number of launches of every group."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot run.

        Raises:
            UsageError: a setting is wrong; the error names its flag, its value and the right values.
        """
        super().__post_init__()
        for flag, names, known in (
            ("--group", self.groups, tuple(GROUPS)),
            ("--collective", self.collectives, tuple(COLLECTIVES)),
            ("--dtype", self.dtypes, tuple(DTYPES)),
            ("--op", self.operations, OPERATIONS),
        ):
            for name in names:
                require(name in known, flag, name, " or ".join(known))
            require(len(set(names)) == len(names), flag, ",".join(names), "each name once")
        self._require_sizes()
        for name in self.collectives if self.sizes else ():
            require(name in self.sizes, "--collective", name, " or ".join(self.sizes))
        require(self.factor > 1, "-f/--factor", self.factor, "2 or more")
        require(self.warmup_iterations >= 0, "-w/--warmup", self.warmup_iterations, "0 or more calls")
        require_count("-n/--iterations", self.iterations)
        require_count("--repeats", self.rounds)

    def _require_sizes(self) -> None:
        """Raise a ``UsageError`` for a size that is out of range, or too small for a collective."""
        for flag, size in (("-b/--begin", self.begin_bytes), ("-e/--end", self.end_bytes)):
            require(1 <= size <= _MAXIMUM_BYTES, flag, size, f"a size from 1 to {_MAXIMUM_BYTES} bytes")
        begin, end = self.begin_bytes, self.end_bytes
        require(begin <= end, "-b/--begin", begin, f"a size up to --end, which is {end} bytes")
        for exchange in self.exchanges:
            least = 0 if exchange.traits.empty else exchange.quantum(self.ranks)
            allowed = f"at least {least} bytes, because each rank of {exchange} needs one element"
            require(end >= least, "-e/--end", end, allowed)

    @property
    def exchanges(self) -> list[Exchange]:
        """Return every chosen collective with each dtype and operation that it can have."""
        return [
            Exchange(name, dtype, operation)
            for name in self.collectives
            for dtype in ((NONE,) if COLLECTIVES[name].empty else self.dtypes)
            for operation in (self.operations if COLLECTIVES[name].reduces else (NONE,))
        ]

    def sizes_of(self, exchange: Exchange) -> list[int]:
        """Return the sizes of the larger buffer in bytes, in ascending order; ``[0]`` for a barrier.

        They are those of ``sizes``, if it has any. Otherwise they start at ``begin_bytes``, and each is
        ``factor`` times the one before, up to ``end_bytes``. Each is rounded down to whole elements, with
        equal parts for all ranks where the buffer is divided. Sizes that become 0 are left out. If none is
        left, the list holds the smallest size that the ranks can divide.
        """
        if exchange.traits.empty:
            return [0]
        sizes, size, quantum = list[int](), self.begin_bytes, exchange.quantum(self.ranks)
        if self.sizes:
            given = sorted(self.sizes[exchange.collective])
            return list(dict.fromkeys(max(quantum, size // quantum * quantum) for size in given))
        while size <= self.end_bytes:
            sizes.append(size // quantum * quantum)
            size *= self.factor
        return [size for size in dict.fromkeys(sizes) if size] or [quantum]

    @property
    def measurements(self) -> list[tuple[Exchange, int]]:
        """Return the pairs of a collective and a size in bytes, in the order in which a launch times them."""
        return [(exchange, size) for exchange in self.exchanges for size in self.sizes_of(exchange)]

    def arm_of(self, group: str) -> Arm:
        """Return the arm whose launcher and libraries serve to launch a group."""
        return Arm(GROUPS[group].backend, dict(GROUPS[group].options))

    # ``RunConfig`` has these two properties as well, because reports of progress need them.

    @property
    def total_steps(self) -> int:
        """Return the number of measurements in a launch."""
        return len(self.measurements)

    @property
    def total_launches(self) -> int:
        """Return the number of launches of all groups together."""
        return self.rounds * len(self.groups)


def sizes_of_steps(run: Run) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the collectives that steps of a run called among all ranks, by their names.

    Only arms whose steps were recorded have any; see ``RankResult.calls``.

    Raises:
        UsageError: there is no such arm in the run.
    """
    sizes: dict[str, set[int]] = {}
    for call in (call for launch in run.launches for call in launch.ranks[0].calls if not call.ranks):
        sizes.setdefault(call.collective, set()).add(call.message_bytes)
    if not sizes:
        raise UsageError(
            "--sizes-of: no step of this run has recorded collectives.",
            found=f"Its arms are {', '.join(dict.fromkeys(launch.arm for launch in run.launches))}.",
            remedy="Name a run of an arm that shards: ringside run --backend fsdp.",
        )
    return {name: tuple(sorted(found)) for name, found in sizes.items()}


class SizeTiming(Exchange, frozen=True, kw_only=True):
    """One rank's times of one collective at one size, measured without training."""

    message_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Size of the larger buffer in bytes; 0 for a barrier."""
    calls: Count = 0
    """Number of successive calls in each iteration, which is the same on all ranks."""
    ns: list[Positive] = []
    """Nanoseconds of one call, for each iteration: the mean over the iteration's ``calls``."""
    wrong: Count = 0
    """Number of wrong elements in this rank's result of one more call, which is not timed."""
    refused: str = ""
    """Why the library refused this collective; empty if it was timed."""
    sent_bytes: float | None = None
    """Mean number of bytes that this rank's host sent on the interface in a call, with headers.

    The kernel counts them during the timed iterations. It is None if there is only one host, and on all ranks
    of a host except its first.
    """
    received_bytes: float | None = None
    """Mean number of bytes that this rank's host received in a call, counted like ``sent_bytes``."""
    sent_packets: float = 0.0
    """Mean number of packets that carried ``sent_bytes``."""
    received_packets: float = 0.0
    """Mean number of packets that carried ``received_bytes``."""


class RankSweep(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one rank, and the facts that it reports about what ran."""

    rank: int
    local_rank: int
    host: str
    pid: int
    timings: list[SizeTiming]
    cpu_ns: Difference = 0
    """CPU time of this rank during all measurements; 0 in older results."""
    machine: MachineUse | None = None
    """Load of the host, on the host's first rank; None on its other ranks, and in older results."""
    attestation: dict[str, Any]
    """Facts about what ran, read back from the library and the kernel."""


class SweepLaunch(LaunchRecord, frozen=True, kw_only=True):
    """One successful launch of a group, with one result from every rank."""

    group: str
    ranks: list[RankSweep]


class CollectivesRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``ringside collectives``: its settings, hosts and all measurements."""

    schema_version: int = SWEEP_SCHEMA_VERSION
    ringside_version: str
    started_at: str
    """Start of the command, in ISO 8601 with the time zone."""
    command: list[str]
    config: SweepConfig
    hosts: Annotated[list[Host], msgspec.Meta(min_length=1)]
    network: Network = Network()
    cores_by_host: list[Positive]
    """Number of CPUs that the ranks of each host may use, in the order of ``hosts``."""
    left_out: dict[str, str] = {}
    """Why groups that the user did not name cannot run, by the group's name."""
    launches: list[SweepLaunch] = []
    failures: list[Failure] = []
    """The launches that failed; their groups were not launched again."""
    complete: bool = False
    """Whether everything that the user asked for was measured."""

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command: for wrong results, for a stalled or failed launch, or 0."""
        ranks = [rank for launch in self.launches for rank in launch.ranks]
        if any(timing.wrong for rank in ranks for timing in rank.timings):
            return ParityError.exit_code
        return exit_code_of(self.failures)
