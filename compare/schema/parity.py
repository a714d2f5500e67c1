"""Define what a rank records when its training is compared with that of a single process."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

PassKind: TypeAlias = Literal["float64", "float32", "as run"]

WrongKind: TypeAlias = Literal["alone", "sum", "none"]
"""Wrong steps that a proof must tell apart from the right one.

``alone`` takes one shard's gradient, ``sum`` adds up those of all shards, and ``none`` changes nothing.
"""

EPSILON: dict[PassKind, float] = {"float64": 2.0**-52, "float32": 2.0**-23}
"""Distance from 1 to the next larger number. ``as run`` is missing, because that pass has no limit."""
_OF_THE_SUM = 8
_OF_THE_UPDATE = 32
_WITHOUT_UPDATES: dict[PassKind, float] = {"float64": 1e-12, "float32": 1e-6, "as run": math.inf}
"""The limits for results that are older than the field ``updates``."""


def rounding_limit(kind: PassKind, update: float, shards: int) -> float:
    """Return the largest relative difference after one step that rounding explains.

    A step is p - lr · (g1 + … + gn) / n. The subtraction rounds once, relative to the parameter p. The
    gradients round with every addition, in samples, layers and shards, relative to the update. ``update`` is
    the largest number of the update over the largest number of p. docs/method.md derives the limit.
    """
    return EPSILON[kind] * (_OF_THE_SUM + _OF_THE_UPDATE * shards * update)


class Fingerprint(msgspec.Struct, frozen=True):
    """SHA-256 hashes of what the training of a rank began and ended with.

    Two launches with the same fingerprints trained the same, bit for bit. So the proof of one holds for both.
    """

    initial: str
    """Hash of the bytes of all parameters before the first step."""
    final: str
    """Hash of the bytes of all parameters after the last step."""
    buffers: str = ""
    """Hash of the bytes of this rank's buffers after the last step; empty if the model has no buffers."""


class WrongStep(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of a rank that rounding does not explain."""

    step: int
    """Number of the step, from 1."""
    parameter: str
    """Name of the parameter whose relative difference from the single process's is the largest."""
    difference: float | None
    """That relative difference; None if it is not a number."""
    shares: list[float] = []
    """Share of each shard's gradient in the update, times the number of shards: each is 1 in the mean.

    The shares are found by least squares. Empty where the gradients of all shards do not fit into memory.
    """
    left_over: float = 0.0
    """Share of the previous step's update in this one, by the same least squares."""
    unexplained: float | None = None
    """Part of the update that ``shares`` and ``left_over`` do not explain, by Euclidean norms.

    None without ``shares``.
    """
    kept: float = 1.0
    """Component of the right update along the mean gradient: below 1 where ``before_step`` clips."""
    rate: float = 1.0
    """The optimizer's learning rate that is furthest from the right one, over the right one."""
    rounded: bool = False
    """Whether rounding to half precision explains the error of every number."""
    only: bool = False
    """Whether all other parameters are right."""
    uncarried: bool = False
    """Whether two new models of the workload begin differently.

    Then something outside the model keeps a state, so the single process is no reference.
    """
    structure: str = ""
    """Why the step is not one backward pass and one optimizer step; empty if it is."""


class EndStep(msgspec.Struct, frozen=True, kw_only=True):
    """One more step, taken by the run's own replica after its training.

    The gradients that its optimizer gets are compared with the mean gradient of a single process, in the
    run's precision. So the comparison finds errors that begin late in a training.
    """

    step: int
    """Number of steps that the replica had taken before this one."""
    error: float | None = None
    """Distance of the gradient from the mean, over the size of the mean, by Euclidean norms.

    It is that of the parameter furthest beyond its limit, and None if it is not a number.
    """
    limit: float = 0.0
    """Largest ``error`` of this parameter that rounding explains.

    It is measured, as the distance of a single process in the run's precision from one in float64.
    """
    alone: float = 0.0
    """The error that this rank's own gradient would have in place of the mean, to compare with ``limit``."""
    share: float = 1.0
    """Component of the gradients along the mean: 1 is right, and the number of ranks is a sum."""
    rate: float = 1.0
    """The learning rate that is furthest from the schedule's, over the schedule's."""
    optimizer_steps: int = 1
    """Number of calls of the optimizer's step; 0 also if no parameter moved."""
    changes_outside: bool = False
    """Whether trainable parameters changed at another time than in the optimizer's step."""
    unseen_bend: int = 0
    """The first step whose factor of the schedule differs from that of all proven steps; 0 if none does.

    It is 0 unless the step is the user's own, because only such a step follows the schedule by itself.
    """
    why_not: str = ""
    """Why nothing was compared; empty if the step was compared."""


class ParityPass(msgspec.Struct, frozen=True, kw_only=True):
    """A short training, each step compared with that of one process."""

    kind: PassKind
    """``float64`` or ``float32`` with plain SGD, or ``as run``: float32 with the run's optimizer."""
    steps: int
    shards: int = 1
    """Number of shards of the training set, usually one for each rank."""
    samples_per_rank: int
    """Number of samples of a rank in one step."""
    optimizer: str
    learning_rate: float
    hash: str
    """SHA-256 over the bytes of all parameters after the last step."""
    share_of_first_update: float | None
    """Component of this rank's first update along the single process's, over the size of the latter.

    1 is right. None if it is not a number.
    """
    error_of_first_update: float | None = None
    """Distance of this rank's first update from the single process's, over the size of the latter.

    Sizes are Euclidean norms over all parameters. None if it is not a number, and in older results.
    """
    error_of_whole_update: float | None = None
    """The same for all steps together; without any training it would be 1.

    None also on ranks that compare only the first step.
    """
    diverged: bool = False
    """Whether the single process diverged after the steps that are compared."""
    unused: list[str] = []
    """Names of the parameters that take no part in the loss of any shard."""
    differences: list[float | None]
    """Largest relative difference of a parameter from the single process's after each step.

    Both start each step from this rank's parameters, but in ``as run`` the single process trains on by
    itself. Ranks other than 0 have only the first step, unless the step is the user's own. None stands for
    a difference that is not a number.
    """
    updates: list[float | None] = []
    """The single process's update in each step: its largest number over the parameter's largest number.

    It is the largest of all parameters. The list is empty in older results.
    """
    wrong: WrongStep | None = None
    """The first step that rounding does not explain, or None."""
    trainable: int = 0
    """Number of trainable parameters; 0 on ranks that do not compare, and in results without ``untold``."""
    untold: dict[WrongKind, list[str]] = {}
    """For each kind of wrong step, the parameters that no step tells apart from it.

    With a single shard there is only the kind ``none``. The dictionary is empty on ranks that do not compare.
    """
    acted: list[bool] = []
    """Whether ``before_step`` changed a gradient, for each step; empty without ``before_step``."""
    combined: float | None = None
    """Distance of the combined batch's gradient from the shards' mean gradient, over the size of the mean.

    It is measured in the first step. None for built-in models, and where dropout or BatchNorm prevents it.
    """
    optimizer_steps: list[int] = []
    """Number of calls of the optimizer's step in each step of the user's own; empty for other steps."""
    shared_samples: float = 0.0
    """Largest part of a shard's samples in these steps that an earlier shard has as well.

    It is 0 unless the loader is the user's own.
    """
    first_batches: list[str] = []
    """SHA-256 of the first batch of each shard, in their order; empty unless the loader is the user's own."""
    seconds: float

    @property
    def limits(self) -> list[float]:
        """Return for each step the largest difference that rounding explains."""
        if not self.updates:
            return [_WITHOUT_UPDATES[self.kind]] * len(self.differences)
        return [rounding_limit(self.kind, update or 0.0, self.shards) for update in self.updates]

    @property
    def is_exact(self) -> bool:
        """Return whether rounding explains the differences of all steps; it never explains None."""
        return all(
            difference is not None and difference <= limit
            for difference, limit in zip(self.differences, self.limits, strict=True)
        )
