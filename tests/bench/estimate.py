"""From paired measurements to a claim: a ratio, its interval, and whether a target is met."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

CONFIDENCE = 0.95
FEW = 10
"""Below so many pairs a bootstrap knows too little: the paired t interval instead."""
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A ratio: the median over pairs, and the interval it lies in."""

    ratio: float
    low: float
    high: float
    n: int


def estimate(ratios) -> Estimate:
    """Estimate a ratio from one value a pair: by t on their logarithms, or by bootstrapping the median."""
    import numpy as np

    logs = np.log(np.asarray(ratios, dtype=float))
    if len(logs) < 2:
        raise ValueError(f"{len(logs)} pairs give no interval")
    low, high = _t_interval(logs) if len(logs) < FEW else _bootstrap_interval(logs)
    return Estimate(*(float(np.exp(value)) for value in (np.median(logs), low, high)), n=len(logs))


def _t_interval(logs) -> tuple[float, float]:
    from scipy import stats

    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * statistics.stdev(logs) / len(logs) ** 0.5
    return logs.mean() - half, logs.mean() + half


def _bootstrap_interval(logs) -> tuple[float, float]:
    import numpy as np

    # Seeded: the same measurements always give the same interval.
    picks = np.random.default_rng(0).integers(len(logs), size=(_RESAMPLES, len(logs)))
    medians = np.median(logs[picks], axis=1)
    return tuple(np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))


@dataclass(frozen=True)
class Target:
    """What a ratio ought to be."""

    kind: str
    """``at least``, ``at most``, or ``reaches``: the interval contains it or lies above."""
    value: float

    def __str__(self) -> str:
        sign = {"at least": "≥", "at most": "≤", "reaches": "interval reaches"}[self.kind]
        return f"{sign} {self.value:.2f}"

    def judge(self, found: Estimate) -> str:
        """Say in a word or two whether the target is met, and whether only because the measurement is vague.

        The median decides; where an interval was asked to reach a value, its upper end.
        """
        if self.kind == "reaches":
            holds = found.high >= self.value
            return ("holds" if holds else "MISSED") + (
                ", within noise" if holds and found.ratio < self.value else ""
            )
        holds = found.ratio >= self.value if self.kind == "at least" else found.ratio <= self.value
        doubtful = found.low < self.value < found.high
        return ("holds" if holds else "MISSED") + (", within noise" if doubtful else "")


def at_least(value: float) -> Target:
    return Target("at least", value)


def at_most(value: float) -> Target:
    return Target("at most", value)


def reaches(value: float) -> Target:
    return Target("reaches", value)


@dataclass(frozen=True)
class Row:
    """One line of the results."""

    what: str
    found: Estimate
    target: Target | None = None
    """None: told for the reader to know, with nothing promised."""
    note: str = ""

    @property
    def verdict(self) -> str:
        return self.target.judge(self.found) if self.target else ""


@dataclass(frozen=True)
class Section:
    """What one bench found."""

    title: str
    text: str
    """What was measured, and how."""
    rows: list[Row]
    conditions: list[str]
    """How much others were using the machine, and what was repeated for it."""
    appendix: str = ""
    """Markdown below the rows."""
    failed: bool = False
    """It could not be measured; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where something was measured: figures from two places are not put into one table."""

    machine: str
    versions: str


@dataclass(frozen=True)
class Record:
    """A section, and where, when and by what command it was measured."""

    name: str
    """Of the bench."""
    section: Section
    command: str
    date: str
    place: Place
    code: str = ""
    """Which version of the code was measured; empty in records that are older than this field."""
