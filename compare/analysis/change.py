"""Judge how the arms of one state changed against another.

``diff`` compares two runs, and ``gate`` two interpreters within one run. Both use the decisions of `judge`,
one-sided. An arm passes if its interval ends below the limit. It fails if it is slower beyond the limit.
An arm that does neither is unresolved, and never passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from compare.analysis.estimate import Estimate
from compare.analysis.looks import ALPHA, FIRST_LOOK
from compare.analysis.verdict import Sample, Settled, Verdict, decide, ratio_of

SLOWER_LIMIT = 0.05
"""Largest slowdown that a gate allows."""
Outcome = Literal["slower", "too noisy", "passed"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm changed, as new over old: above 1 is slower."""

    arm: str
    kind: Literal["slower", "faster", "not slower", "unresolved"]
    """What the change is.

    - *slower* or *faster*: the interval excludes 1, and the estimate exceeds the limit
    - *not slower*: the interval ends below the limit
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
    old: Estimate | None = None
    """Old figure, in the unit of the comparison."""
    new: Estimate | None = None

    @property
    def passed(self) -> bool:
        """Return whether the interval excludes the limit."""
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
    limit: float
    """Largest slowdown that passes, as a fraction."""
    reference: str
    """Arm that divides the times of ``diff``; empty for ``gate``."""
    changes: list[Change]
    outcome: Outcome
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
    old: Mapping[str, Sequence[float]],
    new: Mapping[str, Sequence[float]],
    *,
    limit: float,
    alpha: float = ALPHA,
) -> dict[str, Change]:
    """Judge changes between independent runs, from the log costs of each round.

    With fewer rounds than `FIRST_LOOK` in either run, every arm is unresolved.
    """
    arms = list(old)
    if not arms:
        return {}
    sample = Sample.between([old[arm] for arm in arms], [new[arm] for arm in arms])
    decision = decide(sample, alpha, math.log1p(limit), Settled.none((len(arms),)), one_sided=True)
    changes = {}
    for index, arm in enumerate(arms):
        mean, half_width = float(-sample.mean[index]), float(decision.half_width[index])
        rounds = (len(old[arm]), len(new[arm]))
        kind: Literal["slower", "faster", "not slower", "unresolved"] = "unresolved"
        if min(rounds) >= FIRST_LOOK and decision.settled.different[index]:
            kind = "slower" if mean > 0 else "faster"
        elif min(rounds) >= FIRST_LOOK and decision.settled.equivalent[index]:
            kind = "not slower"
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
    )
