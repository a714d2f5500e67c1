"""Judge an A/A test: how often do two equal arms seem different?

``compare aa`` runs one arm under two names. The rounds are divided into comparisons of equal length, and each
comparison is judged as if it were a run of its own.
"""

from __future__ import annotations

from functools import partial

import msgspec

from compare.analysis.estimate import binomial_interval
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.ranking import log_ratios
from compare.analysis.uneven import withhold
from compare.analysis.verdict import Verdict, judge
from compare.schema.arms import Arm
from compare.schema.results import Run


class AAResult(msgspec.Struct, frozen=True, kw_only=True):
    """Number and rate of the comparisons that call two equal arms different."""

    arm: str
    recorded: int
    """Number of rounds in which both names have a launch that counts."""
    rounds_each: int
    """Number of rounds in each comparison."""
    verdicts: list[Verdict]
    """One verdict for each complete comparison, in order of rounds."""
    false_differences: int
    """Comparisons whose verdict is *faster* or *slower*."""
    rate: float
    """False differences over comparisons."""
    low: float
    """Lower end of the rate's 95 % interval (Clopper & Pearson)."""
    high: float
    """Upper end of the same interval."""


def twins(arm: Arm) -> tuple[Arm, Arm]:
    """Return two copies of an arm, whose field ``twin`` is 1 and 2."""
    first, second = (msgspec.structs.replace(arm, twin=twin) for twin in (1, 2))
    return first, second


def assess(run: Run) -> AAResult | None:
    """Judge the complete comparisons of an A/A test; None for any other run, or before the first."""
    if run.config.comparisons is None:
        return None
    first, second = run.config.arms
    ratios = log_ratios(run, second, first)
    each = run.config.rounds // run.config.comparisons
    found = [_judge(run, ratios, range(at, at + each)) for at in range(0, len(ratios) - each + 1, each)]
    if not found:
        return None
    false = sum(verdict.kind in {"faster", "slower"} for verdict in found)
    low, high = binomial_interval(false, len(found))
    return AAResult(
        arm=msgspec.structs.replace(first, twin=0).label,
        recorded=len(ratios),
        rounds_each=each,
        verdicts=found,
        false_differences=false,
        rate=false / len(found),
        low=low,
        high=high,
    )


def _judge(run: Run, ratios: list[float], rounds: range) -> Verdict:
    """Judge the second twin against the first as if a run had these rounds only.

    ``ratios`` holds the log ratios of all rounds, and ``rounds`` the indices of the ones to judge, from 0.
    """
    first, second = run.config.arms
    launches = [launch for launch in run.launches if launch.round - 1 in rounds]
    own = {second.label: ratios[rounds.start : rounds.stop]}
    accept = partial(withhold, msgspec.structs.replace(run, launches=launches), first.label)
    return judge(own, fewest=FIRST_LOOK, accept=accept)[second.label]
