"""Describe a gate that failed, with the three parts of an error."""

from __future__ import annotations

from typing import Literal, TypeAlias

from compare.schema.arms import Arm
from compare.schema.results import Gate

GateName: TypeAlias = Literal["ranks", "samples", "float64", "float32", "end"]


def failed_gate(
    arm: Arm, name: GateName, what: str, found: str, reason: str, **figures: float | None
) -> Gate:
    """Return a failed gate, whose remedy names the strategy or the user's step and ends with ``reason``.

    ``figures`` are the gate's ``figure`` and ``limit``.
    """
    remedy = f"Fix {'your step' if arm.traits.own_step else 'the strategy'}: {reason}"
    return Gate(name=name, outcome="failed", what=what, found=found, remedy=remedy, **figures)
