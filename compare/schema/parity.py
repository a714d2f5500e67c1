"""Define what a rank records while its training is proven."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

PassKind: TypeAlias = Literal["float64", "float32", "as run"]

WrongKind: TypeAlias = Literal["alone", "sum", "none"]
"""Wrong steps that a proof must tell from the right one.

``alone`` takes one shard's gradient, ``sum`` adds up those of all shards, and ``none`` changes nothing.
"""

EPSILON: dict[PassKind, float] = {"float64": 2.0**-52, "float32": 2.0**-23}
"""Distance of 1 from the next number; ``as run`` has no limit."""
_OF_THE_SUM = 8
_OF_THE_UPDATE = 32
_WITHOUT_UPDATES: dict[PassKind, float] = {"float64": 1e-12, "float32": 1e-6, "as run": math.inf}
"""The limits of results that are older than ``updates``."""


def rounding_limit(kind: PassKind, update: float, shards: int) -> float:
    """Return the largest relative difference that rounding explains in a step.

    A step is p - lr · (g1 + … + gn) / n. The subtraction rounds once, relative to p. The gradients round with
    every addition, in samples, layers and shards, relative to the update. ``update`` is its largest number
    over the largest of its parameter. docs/method.md has the derivation, and what was found.
    """
    return EPSILON[kind] * (_OF_THE_SUM + _OF_THE_UPDATE * shards * update)


class Fingerprint(msgspec.Struct, frozen=True):
    """What the training of a rank began and ended with, each as SHA-256.

    A launch that has those of another one trained the same, bit for bit. So the proof of one is that of
    both.
    """

    initial: str
    """Over the bytes of the parameters before the first step."""
    final: str
    """Likewise after the last step."""
    buffers: str = ""
    """Over the bytes of the rank's own buffers at the end; empty without any."""


class WrongStep(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of a rank that rounding does not explain."""

    step: int
    """Number of the step, from 1."""
    parameter: str
    """The parameter that is furthest from the single process's."""
    difference: float | None
    """Relative difference of this parameter; None if it is not a number."""
    shares: list[float] = []
    """Part of each shard's gradient in the update; the mean has 1.

    Found by least squares. Empty where the gradients of all shards do not fit into memory.
    """
    left_over: float = 0.0
    """How much of the previous update is in this one."""
    unexplained: float | None = None
    """Part of the update that they do not explain, by Euclidean norms."""
    kept: float = 1.0
    """Part of the mean that ``before_step`` keeps, such as a clip."""
    rate: float = 1.0
    """The learning rate that the optimizer had, over the right one."""
    rounded: bool = False
    """Whether each number is right except for half precision."""
    only: bool = False
    """Whether all other parameters are right."""
    uncarried: bool = False
    """Whether two new models of the workload begin differently.

    Then something outside the model keeps a state, and the single process is no measure.
    """
    structure: str = ""
    """Why it is not one backward pass and one optimizer's step; empty if it is."""


class EndStep(msgspec.Struct, frozen=True, kw_only=True):
    """One more step, taken by the run's own replica after its training.

    What the optimizer is given is compared with the mean gradient of a single process, in the run's
    precision. So an error that begins late is seen as well.
    """

    step: int
    """Steps that the replica had taken."""
    error: float | None = None
    """Distance of the gradients from the mean, over its size; None if not a number."""
    limit: float = 0.0
    """Largest error that rounding explains: measured, by a single process in float64."""
    alone: float = 0.0
    """Distance of this rank's own gradient from the mean, over its size."""
    share: float = 1.0
    """Component along the mean: 1 is right, the number of ranks is a sum."""
    rate: float = 1.0
    """The learning rate over the right one, of the parameter where it is furthest off."""
    optimizer_steps: int = 1
    changes_outside: bool = False
    """Whether parameters that train changed other than in the optimizer's step."""
    unseen_bend: int = 0
    """The first step at which the schedule bends, if no proven step shows it; else 0.

    Only of a step of the user's own, which follows the schedule by itself.
    """
    why_not: str = ""
    """Why nothing was compared; empty if it was."""


class ParityPass(msgspec.Struct, frozen=True, kw_only=True):
    """A short training, each step compared with that of one process."""

    kind: PassKind
    """Plain SGD in float64 or float32; ``as run``: the run's optimizer, float32."""
    steps: int
    shards: int = 1
    """Shards of the training set, usually one for each rank."""
    samples_per_rank: int
    """Samples of one step."""
    optimizer: str
    learning_rate: float
    hash: str
    """SHA-256 over the parameters' bytes after the last step."""
    share_of_first_update: float | None
    """This rank's share of the single process's first update: 1 is right."""
    error_of_first_update: float | None = None
    """Relative distance of this rank's first update from the single process's.

    By Euclidean norms over all parameters. None if it is not a number, and in results without this field.
    """
    error_of_whole_update: float | None = None
    """The same for all steps together; no training would be 1.

    None on other ranks than 0, too.
    """
    diverged: bool = False
    """Whether the single process diverged, after the steps that are compared."""
    unused: list[str] = []
    """Parameters that take no part in the loss of any shard."""
    differences: list[float | None]
    """Relative difference of the parameters from the single process's after each step.

    Both start each step from this rank's parameters. Other ranks than 0 have only the first, except where the
    step is the user's own. None if it is not a number.
    """
    updates: list[float | None] = []
    """The single process's update in each step, relative to its parameter.

    The largest over all parameters, by the largest number of each.
    """
    wrong: WrongStep | None = None
    trainable: int = 0
    """Parameters that train; 0 in results without the next field."""
    untold: dict[WrongKind, list[str]] = {}
    """The parameters that no step tells apart from each wrong one.

    Only the leading rank compares with wrong steps. Where all have one shard, ``none`` alone is there.
    """
    acted: list[bool] = []
    """Whether ``before_step`` changed a gradient, in each step; empty without one."""
    combined: float | None = None
    """Distance of the mean from the first gradient of the combined batch, over its size.

    None where that is not compared, for dropout or BatchNorm, or in the built-in models.
    """
    optimizer_steps: list[int] = []
    """Calls of the optimizer's step in each of the user's own steps."""
    shared_samples: float = 0.0
    """Largest part of a shard's samples that an earlier shard has too.

    In these steps, and only where the loader is the user's own.
    """
    first_batches: list[str] = []
    """SHA-256 of the first batch of every shard of an own loader."""
    seconds: float

    @property
    def limits(self) -> list[float]:
        """Return the largest difference of each step that rounding explains."""
        if not self.updates:
            return [_WITHOUT_UPDATES[self.kind]] * len(self.differences)
        return [rounding_limit(self.kind, update or 0.0, self.shards) for update in self.updates]

    @property
    def is_exact(self) -> bool:
        """Return whether rounding explains the differences of all steps."""
        return all(
            difference is not None and difference <= limit
            for difference, limit in zip(self.differences, self.limits, strict=True)
        )
