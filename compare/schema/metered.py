"""Define the record that ``ringside meter`` writes about a script that ran under it.

Rank 0 writes the whole file anew after each block, so a script that is killed leaves what was measured.
"""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from compare.system.files import read_json

METER_FILE = "meter.json"
METER_SCHEMA_VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Kind = Literal["synchronised", "local", "aa", "phases", "isolated"]
"""What a block measures.

``synchronised``
    steps as the script takes them.
``local``
    steps without synchronising of gradients, whose effect is undone after the block.
``aa``
    steps that synchronise, in a block that is treated like a local one otherwise, for an A/A test.
``phases``
    steps that synchronise, with hooks that read the clock.
``isolated``
    the all-reduces of a step alone, without any computing, between two steps.
"""
PHASES = ("forward", "between", "backward", "waiting", "clipping", "optimizer", "outside")
"""The parts of a step in ``phases`` blocks, in seconds of a step.

``between`` is from the end of forward to the start of backward, such as the loss. ``waiting`` is from the
last gradient to the end of backward, and ``clipping`` from there to the optimizer. ``outside`` is the rest,
such as loading data.
"""


class MeterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may choose about the measuring."""

    pairs: Count = 20
    """Number of pairs of a synchronised and a local block; with 0, nothing is measured."""
    block: Annotated[int, msgspec.Meta(ge=1)] = 25
    """Number of timed steps of a block, which has one more that is not timed."""
    warmup: Annotated[int, msgspec.Meta(ge=1)] = 30
    """Number of steps before the first block."""
    seed: Count = 0
    """Seed of the order of blocks, which is the same on all ranks."""
    aa: bool = False
    """Whether both blocks of a pair synchronise, for an A/A test."""

    @property
    def steps_needed(self) -> int:
        """Return the minimum number of steps for the warm-up, the step that is looked at, and all pairs."""
        return max(2, self.warmup) + 2 + 2 * self.pairs * (self.block + 1)


class MeteredRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank and where it runs."""

    rank: Count
    host: str
    pid: int
    device: str
    """The device of the parameters, as torch writes it, such as ``cuda:0``."""
    device_name: str = ""
    """The name of the GPU; empty on a CPU."""
    threads: Count
    """Number of torch's threads."""
    cpus: list[Count] = []
    """Numbers of the CPUs that the rank may use; empty if they are not known."""
    kept_bytes: Count = 0
    """Memory for the state that is put back after a local block."""


class Synchronised(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that synchronises gradients, as the script built it."""

    way: Literal["ddp", "horovod", "by_hand"]
    name: str
    """The class of the wrapper, or the function that is called by hand."""
    model: str = ""
    """The class of the model; empty where only gradients are seen."""
    tensors: Count = 0
    """Number of gradients."""
    gradient_bytes: Count = 0
    messages: list[Count] = []
    """Bytes of each all-reduce of a step, in order: DDP's buckets; empty where the library does not tell."""
    settings: dict[str, str] = {}
    """Settings of the wrapper that matter to its speed, such as ``bucket_cap_mb``."""


class Unswitched(msgspec.Struct, frozen=True, kw_only=True):
    """What synchronises in a way that cannot be switched off, so nothing was measured."""

    name: str
    """The class or library, such as ``FullyShardedDataParallel``."""
    why: str
    arm: str = ""
    """The arm of ``ringside run`` that answers instead; empty if there is none."""


class MeteredBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One block of steps, measured on all ranks."""

    kind: Kind
    pair: Count
    """Number of the pair, from 0; blocks of ``phases`` and of ``isolated`` have a count of their own."""
    step: Count
    """Number of the script's steps before this block."""
    steps: Annotated[int, msgspec.Meta(ge=1)]
    """Number of timed steps."""
    seconds: list[Seconds]
    """Wall time of the timed steps, of each rank."""
    cpu_seconds: list[Seconds] = []
    """CPU time of each rank with its children in the timed steps; empty in older records."""
    busy_seconds: list[Seconds] = []
    """Busy time of the CPUs that each rank may use, added up over them, in the timed steps."""
    restoring_seconds: list[Seconds] = []
    """Time to keep and to put back the state, of each rank; empty where nothing is put back."""
    phases: list[dict[str, Seconds]] = []
    """Seconds of a step in each of ``PHASES``, of each rank."""
    discarded: str = ""
    """Why this block does not count, such as an evaluation in its midst; empty if it does."""


class Metered(msgspec.Struct, kw_only=True):
    """What ``ringside meter`` measured of a script."""

    schema_version: int = METER_SCHEMA_VERSION
    ringside_version: str
    started_at: str
    """Time of the first step of an optimizer on rank 0, in ISO 8601 with the time zone."""
    command: list[str]
    """The script with its arguments, as it was started."""
    settings: MeterSettings
    torch_version: str = ""
    backend: str = ""
    """What carries the data: ``gloo``, ``nccl`` or ``mpi``; for Horovod what its collectives use."""
    ranks: list[MeteredRank] = []
    synchronised: list[Synchronised] = []
    unswitched: list[Unswitched] = []
    optimizers: list[str] = []
    """The classes of the optimizers that took steps, in the order of their first steps."""
    steps: Count = 0
    """Number of steps that the script has taken, as far as it was counted."""
    undone_steps: Count = 0
    """Number of steps in local blocks, whose effect was undone."""
    blocks: list[MeteredBlock] = []
    notes: list[str] = []
    """Sentences about what else was found, such as that blocks were made shorter."""
    measured: bool = False
    """Whether all pairs were measured."""
    ended: str = ""
    """Why measuring ended: a sentence. It is empty while the script runs, or if it was killed."""

    def __post_init__(self) -> None:
        """Refuse blocks without the numbers for any figures, such as those of an edited file.

        Raises:
            ValueError: a rank has another number than its place, or a block has no figure for a rank.
        """
        if [rank.rank for rank in self.ranks] != list(range(len(self.ranks))):
            raise ValueError("Its ranks are not numbered from 0.")
        size = len(self.ranks)
        for block in self.blocks:
            given: list[Sized] = [block.seconds, block.phases or block.seconds]
            given += [block.cpu_seconds, block.busy_seconds] if block.busy_seconds else []
            if any(len(one) != size for one in given):
                raise ValueError(f"A block does not have a figure for each of {size} ranks.")
            if block.kind != "phases" and not all(block.seconds):
                raise ValueError("A block took no time.")

    def of(self, kind: Kind) -> list[MeteredBlock]:
        """Return the blocks of a kind that count."""
        return [block for block in self.blocks if block.kind == kind and not block.discarded]

    @property
    def complete_pairs(self) -> list[tuple[MeteredBlock, MeteredBlock]]:
        """Return the pairs whose blocks both count: first the synchronised block, then the other."""
        first = {block.pair: block for block in self.of("synchronised")}
        second = {block.pair: block for kind in ("local", "aa") for block in self.of(kind)}  # type: ignore[arg-type]
        return [(first[pair], second[pair]) for pair in sorted(first.keys() & second.keys())]


def read_metered(file: Path) -> Metered:
    """Read the record of a meter.

    Raises:
        OutputError: the file is missing, damaged or of another version.
    """
    return read_json(file, Metered)
