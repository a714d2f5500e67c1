"""What a rank has seen, as it writes it down. Judged in ``promises.py``; read without importing torch."""

from __future__ import annotations

from typing import Any

import msgspec


class Lap(msgspec.Struct):
    """One barrier to which one rank came late. Clocks are of one machine, so they can be compared."""

    late: int
    arrived_ns: int
    left_ns: int


class GroupRecord(msgspec.Struct, kw_only=True):
    """What one rank saw of its group."""

    name: str
    arm: str
    rank: int
    world_size: int
    placement: dict[str, Any]
    device: str
    laps: list[Lap]
    wrong: dict[str, list[str]]
    """By operation: the dtypes and shapes for which the result was another than the exact one."""
    checked: dict[str, int]
    """By operation: for how many it was looked at."""
    sum_hash: str
    """Of a sum that must be rounded."""
    refused: dict[str, str]
    """By operation: which exception it raised."""
    attestation: dict[str, Any]
    attestation_error: str


class Training(msgspec.Struct, kw_only=True):
    """How twenty steps went, beside the same steps in a single process."""

    started: str
    ended: str
    error: float
    """Largest relative difference of a parameter from the single process on the combined batch."""
    error_alone: float
    """The same from a single process on this rank's shard, from this rank's own start."""


class ReplicaRecord(msgspec.Struct, kw_only=True):
    """What one rank saw of its replica."""

    name: str
    arm: str
    rank: int
    world_size: int
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
    """Of the parameters of ``replica.model``."""
    plain_names: list[str]
    gradient_bytes: int
    largest_gradient_bytes: int
    built: str
    """Hash of the parameters that the rank brought along: another on every rank."""
    started: str
    """Hash of those that the replica starts from."""
    gradients_before_sync: str
    gradients: str
    gradient_error: float
    """Largest relative difference of a gradient from that of the combined batch."""
    gradient_error_mean: float
    """The same from the mean of the shards' gradients."""
    gradient_error_alone: float
    """The same from the gradient of this rank's shard alone, from this rank's own start."""
    second_gradient_error: float
    second_gradient_error_alone: float
    trainings: dict[str, Training]
    attestation: dict[str, Any]
    attestation_error: str
    group_attestation: dict[str, Any]


class RankRecord(msgspec.Struct, kw_only=True):
    """Everything that one rank saw in a launch; written again whenever there is more."""

    groups: list[GroupRecord] = []
    replicas: list[ReplicaRecord] = []
    refusals: dict[str, str] = {}
    """By attempt: the message of the BackendError, or what happened instead."""
    failure: str = ""
    left: bool = False
    """Whether every group was left in good order."""
