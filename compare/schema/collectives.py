"""Define the settings and the results of ``compare collectives``.

``docs/results.md`` describes every field of ``collectives.json``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from backends import GROUPS
from compare.errors import LaunchError, ParityError, StalledError, UsageError
from compare.schema.arms import Arm
from compare.schema.config import LaunchConfig, require, require_count
from compare.schema.hosts import Host, Network
from compare.schema.results import Failure, LaunchRecord, Positive

COLLECTIVES_FILE = "collectives.json"
SWEEP_SCHEMA_VERSION = 1
ELEMENT_BYTES = 4
"""Of float32, the only dtype so far."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,12})([KMG]?)(?:i?B)?", re.IGNORECASE)
_MAXIMUM_BYTES = 1 << 36


def read_bytes(flag: str, text: str) -> int:
    """Read a size as nccl-tests do.

    K, M and G are powers of two.

    Raises:
        UsageError: it is no size.
    """
    written = _SIZE.fullmatch(text.strip())
    if not written:
        raise UsageError(
            f"{flag} cannot be {text!r}.", remedy="Use a number of bytes, such as 8, 32K or 64M."
        )
    return int(written[1]) * _UNITS[written[2].upper()]


class SweepConfig(LaunchConfig, frozen=True, kw_only=True):
    """All settings that decide what a sweep measures."""

    groups: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """Names of the groups, in the user's order."""
    collective: Literal["all_reduce"] = "all_reduce"
    dtype: Literal["float32"] = "float32"
    operation: Literal["sum"] = "sum"
    begin_bytes: int = 8
    end_bytes: int = 64 << 20
    factor: int = 2
    iterations: int = 5
    """Timed iterations of each size in each launch."""
    warmup_iterations: int = 1
    """Calls of each size before the first timed one."""
    rounds: int = 3
    """Launches of every group."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot run.

        Raises:
            UsageError: names the flag, its value and the right values.
        """
        super().__post_init__()
        for name in self.groups:
            require(name in GROUPS, "--group", name, " or ".join(GROUPS))
        require(
            len(set(self.groups)) == len(self.groups), "--group", ",".join(self.groups), "each group once"
        )
        right = f"{ELEMENT_BYTES} or more bytes, at most {_MAXIMUM_BYTES}"
        for flag, size in (("-b/--begin", self.begin_bytes), ("-e/--end", self.end_bytes)):
            require(ELEMENT_BYTES <= size <= _MAXIMUM_BYTES, flag, size, right)
        require(
            self.begin_bytes <= self.end_bytes,
            "-b/--begin",
            self.begin_bytes,
            f"at most --end, which is {self.end_bytes}",
        )
        require(self.factor > 1, "-f/--factor", self.factor, "2 or more")
        require(self.warmup_iterations >= 0, "-w/--warmup", self.warmup_iterations, "0 or more calls")
        require_count("-n/--iterations", self.iterations)
        require_count("--repeats", self.rounds)

    @property
    def sizes(self) -> list[int]:
        """Return the message sizes in bytes, each of whole elements."""
        sizes, size = [], self.begin_bytes
        while size <= self.end_bytes:
            sizes.append(size // ELEMENT_BYTES * ELEMENT_BYTES)
            size *= self.factor
        return sizes

    def arm_of(self, group: str) -> Arm:
        """Return the arm that launches a group."""
        return Arm(GROUPS[group].backend, dict(GROUPS[group].options))

    # What the progress of a run asks of its config.

    @property
    def total_steps(self) -> int:
        """Return the number of sizes in a launch."""
        return len(self.sizes)

    @property
    def total_launches(self) -> int:
        """Return the number of launches."""
        return self.rounds * len(self.groups)


class SizeTiming(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's times of one collective of one size, alone."""

    message_bytes: Positive
    calls: int = 0
    """Calls in a row in each iteration, the same on all ranks."""
    ns: list[Positive] = []
    """Nanoseconds of a call in each iteration."""
    wrong: int = 0
    """Elements of a further call's result that are wrong on this rank."""
    refused: str = ""
    """Why the library refused it; then nothing was timed."""


class RankSweep(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured, and what the library attests."""

    rank: int
    local_rank: int
    host: str
    pid: int
    timings: list[SizeTiming]
    attestation: dict[str, Any]
    """What ran, read back from the library and the kernel."""


class SweepLaunch(LaunchRecord, frozen=True, kw_only=True):
    """One successful launch of a group, with one result of every rank."""

    group: str
    ranks: list[RankSweep]


class CollectivesRun(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of ``compare collectives``."""

    schema_version: int = SWEEP_SCHEMA_VERSION
    ringside_version: str
    started_at: str
    """ISO 8601 with zone."""
    command: list[str]
    config: SweepConfig
    hosts: Annotated[list[Host], msgspec.Meta(min_length=1)]
    network: Network = Network()
    cores_by_host: list[Positive]
    """CPUs that the ranks of each host may use."""
    left_out: dict[str, str] = {}
    """Reasons of groups that cannot run and that were not named."""
    launches: list[SweepLaunch] = []
    failures: list[Failure] = []
    """Launches that failed; they stop no other group."""
    complete: bool = False

    @property
    def exit_code(self) -> int:
        """Return 0 if all is right; wrong sums precede failed launches."""
        ranks = [rank for launch in self.launches for rank in launch.ranks]
        if any(timing.wrong for rank in ranks for timing in rank.timings):
            return ParityError.exit_code
        kinds = {failure.kind for failure in self.failures}
        if not kinds:
            return 0
        return StalledError.exit_code if StalledError.__name__ in kinds else LaunchError.exit_code
