"""Judge how arms changed between two environments or two runs.

``gate`` compares two interpreters within one run, and has a limit. An arm passes if a one-sided test shows
that it is not slower by the limit. It fails if its two-sided interval excludes no change and its estimate
exceeds the limit. An arm that does neither is unresolved, and never passes. ``diff`` describes how two
runs differ, and has no limit.
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
    """How one arm changed, in ratios of the new figure over the old: above 1 is slower."""

    arm: str
    kind: Literal["slower", "faster", "not slower", "unresolved"]
    """Kind of the change, by the look that settled it.

    - *slower* or *faster*: the interval excludes 1, and in a gate the estimate exceeds the limit
    - *not slower*: ``at_most`` is within the limit of a gate
    - *unresolved*: anything else
    """
    ratio: float | None
    """Geometric mean over the rounds; None if a run has no round of the arm."""
    low: float | None
    """Lower end of the interval; None if a side has a single round."""
    high: float | None
    """Upper end of the same interval."""
    level: float
    """Confidence level of this one interval, after Holm's correction and the shares of the looks."""
    rounds: tuple[int, int]
    """Numbers of rounds of the old and of the new side."""
    at_most: float | None = None
    """Upper end of the one-sided interval by which an arm of a gate passes; None for ``diff``."""
    old: Estimate | None = None
    """Old figure: seconds per step in a gate, step time over the reference arm's in ``diff``."""
    new: Estimate | None = None
    """New figure, in the same unit."""

    @property
    def passed(self) -> bool:
        """Return whether the arm is shown not to be slower than the gate's limit allows."""
        return self.kind in {"faster", "not slower"}


class Differing(msgspec.Struct, frozen=True):
    """A fact that differs between the two sides."""

    what: str
    old: str
    new: str


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """All changes between two sides, as every output format shows them."""

    command: Literal["diff", "gate"]
    old: str
    """Name of the old side."""
    new: str
    """Name of the new side."""
    reference: str
    """Label of the arm whose step times divide those of ``diff``; empty for ``gate``."""
    changes: list[Change]
    limit: float | None = None
    """Largest slowdown that passes, as a fraction; None for ``diff``."""
    outcome: Outcome | None = None
    """What a gate concludes; None for ``diff``."""
    unlike: list[Differing] = []
    """Settings and hosts that should be equal and differ; ``--force`` allowed the comparison."""
    changed: list[Differing] = []
    """Versions and transports that differ, and that may be the reason for a change."""
    notes: list[str] = []
    """Warnings: noisy rounds, stopped runs, arms that only one side has."""


def outcome_of(changes: Sequence[Change]) -> Outcome:
    """Return a gate's outcome: *slower* if any arm is slower, *passed* if all arms pass, else *too noisy*.

    A gate without any arm is *too noisy*.
    """
    if any(change.kind == "slower" for change in changes):
        return "slower"
    return "passed" if changes and all(change.passed for change in changes) else "too noisy"


def judge_between(
    old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]], *, alpha: float = ALPHA
) -> dict[str, Change]:
    """Judge how each arm changed between two independent runs, and return the changes by arm.

    ``old`` and ``new`` have the same arms, each with ln(step time / the reference arm's) of every round. An
    arm with fewer rounds than `FIRST_LOOK` in either run is unresolved.
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
    """Return a gate's verdict on the speed of an arm as a change of its step time."""
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
