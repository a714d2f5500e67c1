"""Ask of a proof which wrong steps it would have shown.

A proof is empty where a wrong step ends where the right one does: where every gradient is zero, for example,
or where all ranks have the same samples. So each step of the reference is held beside three wrong ones.
``alone`` takes this shard's gradient in place of the mean. ``sum`` adds all shards' gradients up. ``none``
changes nothing. A parameter is told apart from a wrong step if that step lies clearly beyond the limit of
the gate, once at least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from compare.schema.parity import WrongKind

_CLEARLY = 10.0
"""How far beyond the limit a wrong step must lie, because rounding may bring it nearer."""


class ToldApart:
    """The parameters that no step has told apart from a wrong one so far."""

    def __init__(self, names: Sequence[str], kinds: Sequence[WrongKind]) -> None:
        self.untold: dict[WrongKind, list[str]] = {kind: list(names) for kind in kinds}

    @property
    def is_complete(self) -> bool:
        """Return whether every parameter is told apart from every wrong step."""
        return not any(self.untold.values())

    def look(self, wrong: Mapping[WrongKind, Mapping[str, float]], limit: float) -> None:
        """Take a step's distances of wrong steps, relative as the gate's own."""
        for kind, names in self.untold.items():
            far = wrong[kind]
            self.untold[kind] = [name for name in names if not far.get(name, 0.0) > _CLEARLY * limit]


def distance(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """Return the largest difference of two gradients; None is zero."""
    if one is None or other is None:
        left = one if other is None else other
        return 0.0 if left is None or not left.numel() else float(left.abs().max())
    return float((one - other).abs().max()) if one.numel() else 0.0


def relative(size: float, parameter: torch.Tensor, least: float) -> float:
    """Return the size of a difference, relative to the largest number of a parameter."""
    if not parameter.numel() or not math.isfinite(size):
        return 0.0
    return size / (max(float(parameter.abs().max()), least) or 1.0)
