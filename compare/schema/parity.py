"""Define the records of the parity check, which compares a rank's training with that of one process."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

PassKind: TypeAlias = Literal["float64", "float32", "as run"]

WrongKind: TypeAlias = Literal["alone", "sum", "none"]
"""The kinds of wrong steps that a proof must tell apart from the right one.

``alone`` uses the gradient of one shard, ``sum`` adds up those of all shards, and ``none`` changes nothing.
"""

EPSILON: dict[PassKind, float] = {"float64": 2.0**-52, "float32": 2.0**-23}
"""The distance from 1 to the next larger number; ``as run`` is missing, because it has no limit."""
_OF_THE_SUM = 8
_OF_THE_UPDATE = 32
_WITHOUT_UPDATES: dict[PassKind, float] = {"float64": 1e-12, "float32": 1e-6, "as run": math.inf}
"""The limits for results that are older than the field ``updates``."""


def rounding_limit(kind: PassKind, update: float, shards: int) -> float:
    """Return the largest relative difference of a parameter that rounding explains after one step.

    A step is p - lr · (g1 + … + gn) / n for n ``shards``. The subtraction rounds once, relative to the
    parameter p. The gradients round with every addition, relative to the update. ``update`` is the largest
    number of the update over the largest number of p. docs/method.md says how near right arms come to it.
    """
    return EPSILON[kind] * (_OF_THE_SUM + _OF_THE_UPDATE * shards * update)


class Fingerprint(msgspec.Struct, frozen=True):
    """SHA-256 hashes of the model with which a rank's training began, and of that with which it ended.

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
    """Name of the parameter with the largest relative difference from the single process."""
    difference: float | None
    """The relative difference of that parameter; None if it is not a number."""
    shares: list[float] = []
    """The share of each shard's gradient in the update, times the number of shards, so that 1 is right.

    The shares are found by least squares. The list is empty where all gradients do not fit into memory.
    """
    left_over: float = 0.0
    """The share of the previous step's update in this one, found by the same least squares."""
    unexplained: float | None = None
    """The part of the update that ``shares`` and ``left_over`` do not explain, by Euclidean norms.

    It is None if there are no shares.
    """
    kept: float = 1.0
    """The part of the mean gradient that the right update keeps; below 1 where ``before_step`` clips."""
    rate: float = 1.0
    """The learning rate of the optimizer that is furthest from the right one, as a multiple of it."""
    rounded: bool = False
    """Whether rounding to half precision explains the error of every number."""
    only: bool = False
    """Whether all other parameters are right."""
    uncarried: bool = False
    """Whether two new models of the workload differ at the start.

    Then something outside the model keeps a state, so a single process is not a reference.
    """
    structure: str = ""
    """In which way the step is not one backward pass and one optimizer step; empty if it is that."""


class EndStep(msgspec.Struct, frozen=True, kw_only=True):
    """One more step of a rank after its training, in which its gradients are checked.

    The gradients that the optimizer gets are compared with the mean gradient of a single process, in the
    run's precision. So the comparison finds errors that begin late in a training.
    """

    step: int
    """Number of steps that the rank had taken before this one."""
    error: float | None = None
    """The distance of a parameter's gradient from the mean, over the size of the mean, by Euclidean norms.

    The parameter is the one that is furthest beyond its limit. It is None if the distance is not a number.
    """
    limit: float = 0.0
    """The largest ``error`` of this parameter that rounding explains.

    It is measured as the distance of a single process in the run's precision from one in float64.
    """
    alone: float = 0.0
    """The ``error`` if the optimizer got this rank's own gradient instead of the mean."""
    share: float = 1.0
    """The gradients as a multiple of the mean: 1 is right, and the number of ranks would be a sum."""
    rate: float = 1.0
    """The learning rate that is furthest from the schedule's, as a multiple of the schedule's."""
    optimizer_steps: int = 1
    """Number of calls of the optimizer's step; it is also 0 if no parameter changed."""
    changes_outside: bool = False
    """Whether trainable parameters changed outside the optimizer's step."""
    unseen_bend: int = 0
    """The first step at which the learning-rate schedule leaves the factors of the proven steps; 0 if none.

    It is 0 unless the step is the user's own, because only such a step follows the schedule by itself.
    """
    why_not: str = ""
    """Why nothing was compared; empty if the step was compared."""


class ParityPass(msgspec.Struct, frozen=True, kw_only=True):
    """A short training in which each step is compared with the same step of a single process."""

    kind: PassKind
    """The precision: ``float64`` or ``float32`` with plain SGD, or ``as run`` with the run's optimizer."""
    steps: int
    shards: int = 1
    """Number of different shards that the ranks took, usually one for each rank."""
    shard_of_rank: list[int] = []
    """The shard of each rank, in the order of ranks; empty unless several ranks took the same one."""
    samples_per_rank: int
    """Number of samples that a rank has in one step."""
    optimizer: str
    learning_rate: float
    hash: str
    """SHA-256 over the bytes of all parameters after the last step."""
    share_of_first_update: float | None
    """This rank's first update along the single process's, as a multiple of the latter.

    1 is right. It is None if it is not a number.
    """
    error_of_first_update: float | None = None
    """Distance of this rank's first update from the single process's, over the size of the latter.

    Sizes are Euclidean norms over all parameters. It is None if it is not a number, and in older results.
    """
    error_of_whole_update: float | None = None
    """The error of the updates of all steps together, like ``error_of_first_update``.

    It would be 1 without any training. Ranks that compare only the first step have None as well.
    """
    diverged: bool = False
    """Whether the single process diverged after the steps that are compared."""
    unused: list[str] = []
    """Names of the parameters that take no part in the loss of any shard."""
    differences: list[float | None]
    """The largest relative difference of a parameter from the single process, after each step.

    Both start each step from this rank's parameters, but in ``as run`` the single process trains on by
    itself. Ranks other than 0 have only the first step, unless the step is the user's own. None stands for
    a difference that is not a number.
    """
    updates: list[float | None] = []
    """The size of the single process's update in each step, for the parameter where it is the largest.

    It is the update's largest number over the parameter's largest number. Empty in older results.
    """
    wrong: WrongStep | None = None
    """The first step that rounding does not explain, or None if rounding explains all steps."""
    trainable: int = 0
    """Number of trainable parameters; 0 on ranks that do not compare, and in results without ``untold``."""
    untold: dict[WrongKind, list[str]] = {}
    """For each kind of wrong step, the names of the parameters for which the proof would not show it.

    With a single shard there is only the kind ``none``. The dictionary is empty on ranks that do not compare.
    """
    acted: list[bool] = []
    """For each step, whether ``before_step`` changed a gradient; empty without ``before_step``."""
    combined: float | None = None
    """Distance of the gradient of all shards' combined batch from the shards' mean gradient, over its size.

    It is measured in the first step. It is None for built-in models, and with dropout or BatchNorm.
    """
    optimizer_steps: list[int] = []
    """Number of calls of the optimizer's step, for each step of the user's own; empty for other steps."""
    shared_samples: float = 0.0
    """The largest part of a shard's samples that an earlier shard has as well, from 0 to 1.

    It is 0 unless the loader is the user's own.
    """
    first_batches: list[str] = []
    """SHA-256 of the first batch of each shard, in order; empty unless the loader is the user's own."""
    seconds: float

    @property
    def summands(self) -> int:
        """Return the number of gradients in a mean."""
        return len(self.shard_of_rank) or self.shards

    def ranks_of(self, shard: int) -> list[int]:
        """Return the ranks that took a shard, which is given by its number."""
        return [rank for rank, of_rank in enumerate(self.shard_of_rank) if of_rank == shard]

    @property
    def limits(self) -> list[float]:
        """Return the largest difference that rounding explains, for each step."""
        if not self.updates:
            return [_WITHOUT_UPDATES[self.kind]] * len(self.differences)
        return [rounding_limit(self.kind, update or 0.0, self.summands) for update in self.updates]

    @property
    def is_exact(self) -> bool:
        """Return whether rounding explains the differences of all steps; False if one is None."""
        return all(
            difference is not None and difference <= limit
            for difference, limit in zip(self.differences, self.limits, strict=True)
        )
