"""Define the records that ranks write, without importing torch.

``promises.py`` judges them.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Lap(msgspec.Struct):
    """One barrier with one late rank; all clocks are of one machine."""

    late: int
    arrived_ns: int
    left_ns: int


class Seen(msgspec.Struct, kw_only=True):
    """What one rank saw of its group or of a replica."""

    name: str
    arm: str
    rank: int
    attestation: dict[str, Any]
    attestation_error: str


class GroupRecord(Seen, kw_only=True):
    """What one rank saw of its group."""

    world_size: int
    placement: dict[str, Any]
    device: str
    laps: list[Lap]
    right: dict[str, dict[str, bool]]
    """By operation: whether the result was right, for each dtype and shape."""
    sum_hash: str
    """Hash of a sum that must be rounded."""
    refused: dict[str, str]
    """By operation: the exception that it raised."""


class Training(msgspec.Struct, kw_only=True):
    """Twenty steps, compared with the same steps in a single process."""

    started: str
    ended: str
    error: float
    """Largest relative difference from a single process on the combined batch."""
    error_alone: float
    """The same for a single process on this rank's shard and start."""
    error_apart: float
    """The same for models that are averaged; 0 for other arms."""


class ReplicaRecord(Seen, kw_only=True):
    """What one rank saw of its replica."""

    shard: tuple[int, int]
    phases: list[str]
    reported: list[str]
    """Phases that ``learn`` reported."""
    cycle: int
    held: dict[str, int]
    """Bytes that the rank holds after training with Adam."""
    held_whole: dict[str, int]
    """The same of one process."""
    names: list[str]
    """Names of the parameters of ``replica.model``."""
    plain_names: list[str]
    gradient_bytes: int
    largest_gradient_bytes: int
    built: str
    """Hash of the parameters before the replica; different on every rank."""
    started: str
    """Hash of the parameters that the replica starts from."""
    gradients_before_sync: str
    gradients: str
    gradient_error: float
    """Largest relative difference of a gradient from that of the combined batch."""
    gradient_error_alone: float
    """The same from the gradient of this rank's own shard and start."""
    trainings: dict[str, Training]
    group_attestation: dict[str, Any]


class RankRecord(msgspec.Struct, kw_only=True):
    """All records of one rank, rewritten when there are more."""

    groups: list[GroupRecord] = []
    replicas: list[ReplicaRecord] = []
    refusals: dict[str, str] = {}
    """By attempt: the message of the BackendError, or what happened instead."""
    failure: str = ""
    left: bool = False
    """Whether every group was left in good order."""
