"""Judge an A/A test: how often do two equal arms seem different?

``compare aa`` runs one arm under two names, as any run. Its rounds are cut into comparisons, and each is
judged like the verdicts of a run.
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
    """Result of an A/A test."""

    arm: str
    recorded: int
    """Rounds that were launched."""
    rounds_each: int
    """Rounds of each comparison."""
    verdicts: list[Verdict]
    """One for each comparison."""
    false_differences: int
    rate: float
    low: float
    """Lower end of the rate's 95 % interval (Clopper & Pearson)."""
    high: float


def twins(arm: Arm) -> tuple[Arm, Arm]:
    """Return one arm under two names."""
    first, second = (msgspec.structs.replace(arm, twin=twin) for twin in (1, 2))
    return first, second


def assess(run: Run) -> AAResult | None:
    """Judge the complete comparisons of an A/A test; None for another run."""
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
    """Judge rounds, counted from 0, as a run of their own."""
    first, second = run.config.arms
    launches = [launch for launch in run.launches if launch.round - 1 in rounds]
    own = {second.label: ratios[rounds.start : rounds.stop]}
    accept = partial(withhold, msgspec.structs.replace(run, launches=launches), first.label)
    return judge(own, fewest=FIRST_LOOK, accept=accept)[second.label]
