"""Find which wrong steps a proof would have detected.

A proof shows nothing where a wrong step has the same result as the right one, because every gradient is zero,
for example, or because all ranks have the same samples. So each step of the reference is compared with three
wrong ones. ``alone`` takes this shard's gradient in place of the mean, ``sum`` adds up the gradients of all
shards, and ``none`` changes nothing. A parameter is told apart from a wrong step if, in one or more steps of
the proof, its distance from the right one is far beyond the limit of the gate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from compare.schema.parity import WrongKind

_CLEARLY = 10.0
"""Factor by which a wrong step must exceed the limit, because rounding may reduce the distance."""


class ToldApart:
    """For each kind of wrong step, the parameters that no step has told apart from it so far."""

    def __init__(self, names: Sequence[str], kinds: Sequence[WrongKind]) -> None:
        self.untold: dict[WrongKind, list[str]] = {kind: list(names) for kind in kinds}

    @property
    def is_complete(self) -> bool:
        """Return whether every parameter is told apart from every wrong step."""
        return not any(self.untold.values())

    def look(self, wrong: Mapping[WrongKind, Mapping[str, float]], limit: float) -> None:
        """Remove the parameters that a step tells apart, given the limit of the gate for that step.

        ``wrong`` has for each kind and parameter the wrong step's distance from the right one, as the result
        of ``relative``.
        """
        for kind, names in self.untold.items():
            far = wrong[kind]
            self.untold[kind] = [name for name in names if not far.get(name, 0.0) > _CLEARLY * limit]


def distance(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """Return the largest absolute difference of two gradients; None counts as zeros."""
    if one is None or other is None:
        left = one if other is None else other
        return 0.0 if left is None or not left.numel() else float(left.abs().max())
    return float((one - other).abs().max()) if one.numel() else 0.0


def relative(size: float, parameter: torch.Tensor, least: float) -> float:
    """Return ``size`` over the largest number of a parameter, at least ``least``; 0 if not finite."""
    if not parameter.numel() or not math.isfinite(size):
        return 0.0
    return size / (max(float(parameter.abs().max()), least) or 1.0)
