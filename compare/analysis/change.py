"""Judge how the arms of one state changed against another.

``gate`` compares two interpreters within one run, and has a limit. An arm passes if a one-sided test shows
that it is not slower by the limit. It fails if its two-sided interval excludes no change and its estimate
exceeds the limit. An arm that does neither is unresolved, and never passes. ``diff`` describes how two
runs differ, and passes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from compare.analysis.decision import Sample, Settled, decide
from compare.analysis.estimate import Estimate
from compare.analysis.looks import ALPHA, FIRST_LOOK
from compare.analysis.verdict import Verdict, ratio_of

Outcome = Literal["slower", "too noisy", "passed"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm changed, as new over old: above 1 is slower."""

    arm: str
    kind: Literal["slower", "faster", "not slower", "unresolved"]
    """What the change is, as the look says that settled it.

    - *slower* or *faster*: the interval excludes 1, and the estimate exceeds a gate's limit
    - *not slower*: ``at_most`` is within the limit of a gate
    - *unresolved*: anything else
    """
    ratio: float | None
    """None if a run has no round of it."""
    low: float | None
    """Lower end of the interval; None for a single round."""
    high: float | None
    level: float
    """Confidence level of the interval alone, after Holm and spending."""
    rounds: tuple[int, int]
    """Numbers of rounds, old and new."""
    at_most: float | None = None
    """Upper end of the one-sided interval by which an arm of a gate passes."""
    old: Estimate | None = None
    """Old figure, in the unit of the comparison."""
    new: Estimate | None = None

    @property
    def passed(self) -> bool:
        """Return whether it is shown not to be slower by the limit."""
        return self.kind in {"faster", "not slower"}


class Differing(msgspec.Struct, frozen=True):
    """A fact that differs between the two sides."""

    what: str
    old: str
    new: str


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """All changes between two sides, for every format."""

    command: Literal["diff", "gate"]
    old: str
    """Name of the old side."""
    new: str
    reference: str
    """Arm that divides the times of ``diff``; empty for ``gate``."""
    changes: list[Change]
    limit: float | None = None
    """Largest slowdown that passes, as a fraction; None for ``diff``."""
    outcome: Outcome | None = None
    """What a gate concludes; None for ``diff``."""
    unlike: list[Differing] = []
    """What differs and should not; ``--force`` allowed it."""
    changed: list[Differing] = []
    """Versions and transports that differ; they may be the reason."""
    notes: list[str] = []
    """Warnings: noisy rounds, stopped runs, arms of one side."""


def outcome_of(changes: Sequence[Change]) -> Outcome:
    """Conclude from all arms: a slower one decides, then an open one."""
    if any(change.kind == "slower" for change in changes):
        return "slower"
    return "passed" if changes and all(change.passed for change in changes) else "too noisy"


def judge_between(
    old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]], *, alpha: float = ALPHA
) -> dict[str, Change]:
    """Judge changes between independent runs, from the log costs of each round.

    With fewer rounds than `FIRST_LOOK` in either run, every arm is unresolved.
    """
    arms = list(old)
    if not arms:
        return {}
    sample = Sample.between([old[arm] for arm in arms], [new[arm] for arm in arms])
    decision = decide(sample, alpha, 0.0, Settled.none((len(arms),)))
    changes = {}
    for index, arm in enumerate(arms):
        mean, half_width = float(-sample.mean[index]), float(decision.half_width[index])
        rounds = (len(old[arm]), len(new[arm]))
        kind: Literal["slower", "faster", "unresolved"] = "unresolved"
        if min(rounds) >= FIRST_LOOK and decision.settled.different[index]:
            kind = "slower" if mean > 0 else "faster"
        low, high = ratio_of(mean - half_width), ratio_of(mean + half_width)
        changes[arm] = Change(
            arm=arm,
            kind=kind,
            ratio=ratio_of(mean),
            low=low if high is not None else None,
            high=high if low is not None else None,
            level=1 - float(decision.alpha[index]),
            rounds=rounds,
        )
    return changes


def from_verdict(arm: str, verdict: Verdict) -> Change:
    """Turn a one-sided verdict on speed into one on time."""
    low, high = verdict.low, verdict.high
    return Change(
        arm=arm,
        kind="not slower" if verdict.kind == "equivalent" else verdict.kind,
        ratio=1 / verdict.speed_ratio,
        low=1 / high if high else None,
        high=1 / low if low else None,
        level=verdict.level,
        rounds=(verdict.n, verdict.n),
        at_most=1 / verdict.least if verdict.least else None,
    )
