"""Estimate ratios from paired measurements, and compare them with targets."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial

CONFIDENCE = 0.95
FEW = 10
"""Below this number of pairs, use a paired t interval, no bootstrap."""
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A ratio: the median over pairs, with its interval."""

    ratio: float
    low: float
    high: float
    n: int


def estimate(ratios) -> Estimate:
    """Estimate a ratio from one value a pair.

    The interval is by t on the logarithms, or by bootstrapping the median.
    """
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

    # The seed is fixed: the same measurements always give the same interval.
    picks = np.random.default_rng(0).integers(len(logs), size=(_RESAMPLES, len(logs)))
    medians = np.median(logs[picks], axis=1)
    return tuple(np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))


@dataclass(frozen=True)
class Target:
    """A limit for a ratio."""

    kind: str
    """``at least``, ``at most``, or ``reaches``: the interval's upper end is not below it."""
    value: float

    def __str__(self) -> str:
        sign = {"at least": "≥", "at most": "≤", "reaches": "interval reaches"}[self.kind]
        return f"{sign} {self.value:.2f}"

    def judge(self, found: Estimate) -> str:
        """Return whether the target is met, and whether noise makes this uncertain.

        The median decides, and for ``reaches`` the interval's upper end.
        """
        if self.kind == "reaches":
            holds = found.high >= self.value
            return ("holds" if holds else "MISSED") + (
                ", within noise" if holds and found.ratio < self.value else ""
            )
        holds = found.ratio >= self.value if self.kind == "at least" else found.ratio <= self.value
        doubtful = found.low < self.value < found.high
        return ("holds" if holds else "MISSED") + (", within noise" if doubtful else "")


at_least = partial(Target, "at least")
at_most = partial(Target, "at most")
reaches = partial(Target, "reaches")


@dataclass(frozen=True)
class Row:
    """One line of the results."""

    what: str
    found: Estimate
    target: Target | None = None
    """None: shown for information, without a target."""
    note: str = ""

    @property
    def verdict(self) -> str:
        return self.target.judge(self.found) if self.target else ""


@dataclass(frozen=True)
class Section:
    """The results of one bench."""

    title: str
    text: str
    """What was measured, and how."""
    rows: list[Row]
    conditions: list[str]
    """Other CPU load, and how many measurements were repeated because of it."""
    appendix: str = ""
    """Markdown below the rows."""
    failed: bool = False
    """The bench failed; the text gives the reason."""


@dataclass(frozen=True)
class Place:
    """The machine and its versions; a table holds figures of one place."""

    machine: str
    versions: str


@dataclass(frozen=True)
class Record:
    """A section with the place, date and command of its measurement."""

    name: str
    """Name of the bench."""
    section: Section
    command: str
    date: str
    place: Place
    code: str = ""
    """Version of the code; empty in records older than this field."""
