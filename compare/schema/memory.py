"""Define what results tell of memory: the model's parameters, and arms that did not fit."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from compare.schema.arms import Arm
from compare.system.files import LARGEST

Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Limit: TypeAlias = Literal["address space", "control group", "host", "GPU"]
"""What is limited; only ``address space`` is that of one process."""


class ModelParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the whole model, which a strategy may divide among the ranks."""

    name: str
    shape: list[Bytes]
    bytes: Bytes
    trained: bool = True
    """Whether it gets a gradient, and so has a state in the optimizer."""


class Unfit(msgspec.Struct, frozen=True, kw_only=True):
    """An arm that did not fit into memory, so that the run went on without it."""

    arm: Arm
    round: int
    stage: str
    """The stage in which a rank got no more memory, such as ``parity``; empty if it is not known."""
    limit_bytes: Bytes
    limit: Limit
    """What is limited."""
    needed_bytes: Bytes | None = None
    """Bytes that the rank had, and those that it asked for in vain; None if the kernel killed it."""
    beside_others: bool = False
    """Whether ranks of other arms waited beside it, and took a part of what is limited."""


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on memory that a rank has met."""

    limit_bytes: int
    limit: Limit
    needed_bytes: int | None = None
    """Bytes that the rank had, and those that it asked for in vain; None if it was killed."""
