"""Sum up what is proven of an arm over all its launches, and compare where arms ended.

A launch without passes that repeats another launch bit for bit shares the proof of that launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from compare.analysis.gates import left_open, pass_of, shortened, unseen_bend
from compare.analysis.parity import AT_THE_END, UNMOVED, check_training, with_passes
from compare.schema.arms import Arm
from compare.schema.parity import ParityPass
from compare.schema.results import Gate, Launch, Outcome, Run

ROUNDING_MAKES = 1e-3
"""Largest distance of two ends that still counts as rounding, relative to how far the arms moved.

It is ten thousand times the rounding of float32, because a training makes small differences grow.
"""


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """What is proven of an arm: how far it trains what a single process trains."""

    outcome: Outcome | Literal["none"]
    """The worst outcome of the gates that compare the arm with a single process.

    ``exempt``: the arm rounds or compresses by design, or declares another training. ``none``: a launch has
    no pass, as in the control. A run that Ringside wrote holds no failed pass.
    """
    why: str = ""
    """Why nothing is proven, with the remedy; empty if something is proven."""
    open: list[str] = []
    """What the proof leaves open, as phrases: parameters, a clip, the loss."""
    at_end: bool = False
    """Whether one more step after the training of every launch was proven as well."""
    by_hash: int = 0
    """Number of launches without a pass of their own, because they repeat a proven launch bit for bit."""
    steps: int | None = None
    """Smallest number of steps in the pass of any launch; None without a pass."""
    difference: float | None = None
    """Largest relative difference after the last step of any pass; None if one is not a number."""


_WORST_FIRST: tuple[Outcome, ...] = ("failed", "incomparable", "nothing")


def parity_of(arm: Arm, launches: list[Launch]) -> Parity:
    """Sum up the proofs of all launches of an arm."""
    without = [launch for launch in launches if not launch.ranks[0].parity]
    launches = [
        msgspec.structs.replace(launch, ranks=with_passes(launch.ranks, launches)) for launch in launches
    ]
    passes = [taken for launch in launches if (taken := pass_of(launch.ranks[0], "float64"))]
    if len(passes) < len(launches):
        return Parity(outcome="none")
    ends = [taken.differences[-1] if taken.differences else None for taken in passes]
    numbers = [end for end in ends if end is not None]
    gates = [gate for launch in launches for gate in check_training(arm, launch.ranks)]
    beside = [gate for gate in gates if gate.name == "float64"]
    after = [gate for gate in gates if gate.name == "end"]
    judged = [*beside, *(gate for gate in after if gate.outcome == "failed")]
    found = {gate.outcome: gate for gate in reversed(judged)}
    worst = next((found[outcome] for outcome in _WORST_FIRST if outcome in found), None)
    # An arm that rounds by design was judged before its result was kept.
    exempt = not arm.exact or arm.traits.another_training
    outcome: Outcome = "exempt" if exempt else worst.outcome if worst else "passed"
    return Parity(
        outcome=outcome,
        by_hash=len(without),
        steps=min(taken.steps for taken in passes),
        difference=max(numbers) if len(numbers) == len(ends) else None,
        why=f"{worst.what}. {worst.remedy}" if worst and outcome in {"incomparable", "nothing"} else "",
        open=_left_open(launches, passes, beside) if outcome == "passed" else [],
        at_end=len(after) == len(launches) and all(gate.outcome == "passed" for gate in after),
    )


def _left_open(launches: list[Launch], passes: list[ParityPass], gates: list[Gate]) -> list[str]:
    """Return what the proofs of all launches leave open, as phrases, each once."""
    late = [gate.what for gate in gates if gate.what.startswith(AT_THE_END)]
    unmoved = [f"{UNMOVED}: {shortened(la.ranks[0].unmoved)}" for la in launches if la.ranks[0].unmoved]
    late += filter(None, [unseen_bend(la.ranks[0].end) for la in launches if la.ranks[0].end])
    return list(dict.fromkeys([*late, *(what for taken in passes for what in left_open(taken)), *unmoved]))


def distance_of_ends(run: Run, names: Iterable[str]) -> float | None:
    """Return how far the named arms' ends lie apart, relative to how far they moved from the start.

    It is the largest distance of a launch from the first one over the largest movement, by rank 0's sketches.
    None if a launch has no sketch, or if the arms have no launch.
    """
    chosen = set(names)
    sketches = [launch.ranks[0].sketch for launch in run.launches if launch.arm in chosen]
    if not sketches or not all(sketches):
        return None
    first, *others = sketches
    moved = max(math.hypot(*sketch) for sketch in sketches)
    apart = max((math.dist(first, other) for other in others), default=0.0)
    return apart / moved if moved else 0.0
