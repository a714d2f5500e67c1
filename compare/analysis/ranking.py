"""Rank the arms of a run by verdicts, find the fastest arm, and judge A/A tests.

An A/A test runs one arm under two names, to learn how often equal arms seem different. The rounds are
divided into comparisons of equal length, and each comparison is judged as if it were a run of its own.
"""

from __future__ import annotations

import math
import statistics
from functools import partial

import msgspec

from compare.analysis.budget import FIRST_LOOK, looks
from compare.analysis.figures import Figures, binomial_interval
from compare.analysis.noise import withhold
from compare.analysis.verdict import Verdict, judge
from compare.schema.arms import Arm


def log_ratios(figures: Figures, arm: str, other: str) -> list[float]:
    """Return ln(other's step time / this arm's) of each common round, in order of rounds."""
    return [math.log(two.step_seconds / one.step_seconds) for one, two in figures.pairs(arm, other)]


def paired_log_ratios(figures: Figures, baseline: str) -> dict[str, list[float]]:
    """Return, by arm, ln(the baseline's step time / the arm's) of each round that all arms have.

    The arms are those that synchronise, except the baseline. The result is empty without a common round or
    without an arm to compare.
    """
    arms = dict.fromkeys([*(arm.label for arm in figures.run.config.synchronising), baseline])
    common = set.intersection(*(set(figures.by_arm[arm]) for arm in arms))
    paired = figures.within(common)
    return {arm: log_ratios(paired, arm, baseline) for arm in arms if arm != baseline} if common else {}


def verdicts(figures: Figures, baseline: str) -> dict[str, Verdict]:
    """Judge every arm that synchronises against the baseline, and return the verdicts by arm.

    The rounds are those that all of these arms have; without any, the result is empty. A verdict that uneven
    load may explain becomes *open*.
    """
    ratios = paired_log_ratios(figures, baseline)
    if not ratios:
        return {}
    return judge(ratios, looks(figures.run), fewest=FIRST_LOOK, accept=partial(withhold, figures, baseline))


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """The arm with the shortest step time, and the arms that may be as fast."""

    first: str
    """Label of the arm with the shortest step time."""
    rivals: list[str]
    """Labels of the other arms that are not shown to be slower than the first."""
    same: bool
    """Whether all rivals are as fast as the first, within the margin; False without rivals."""
    rounds_to_settle: int | None
    """About how many more rounds settle all open rivals; None without one, or if one needs too many."""

    @property
    def fastest(self) -> str | None:
        """Return the label of the first arm if all others are shown to be slower, else None."""
        return None if self.rivals else self.first


def find_lead(figures: Figures) -> Lead | None:
    """Compare all arms that synchronise with the one of them that has the shortest step time.

    None with fewer than two such arms, if one has no launch, or without a common round.
    """
    times = {arm.label: figures.step_seconds(arm.label) for arm in figures.run.config.synchronising}
    if len(times) < 2 or not all(times.values()):  # noqa: PLR2004 -- a comparison takes two
        return None
    first = min(times, key=lambda arm: statistics.geometric_mean(times[arm].values()))
    judged = verdicts(figures, first)
    if not judged:
        return None
    rivals = {arm: verdict for arm, verdict in judged.items() if verdict.kind != "slower"}
    still_open = [verdict for verdict in rivals.values() if verdict.kind == "open"]
    more = [verdict.rounds_to_settle for verdict in still_open]
    return Lead(
        first=first,
        rivals=list(rivals),
        same=bool(rivals) and not still_open,
        rounds_to_settle=max(filter(None, more), default=None) if None not in more else None,
    )


# ---- A/A tests ----


class AAResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many comparisons of an A/A test call one arm, run under two names, different from itself."""

    arm: str
    recorded: int
    """Number of rounds in which both names have a launch that was not discarded."""
    rounds_each: int
    """Number of rounds in each comparison."""
    verdicts: list[Verdict]
    """One verdict for each complete comparison, in order of rounds."""
    false_differences: int
    """Number of comparisons whose verdict is *faster* or *slower*."""
    rate: float
    """False differences divided by comparisons."""
    low: float
    """Lower end of the rate's 95 % interval (Clopper & Pearson)."""
    high: float
    """Upper end of the same interval."""


def twins(arm: Arm) -> tuple[Arm, Arm]:
    """Return two copies of an arm for an A/A test, whose field ``twin`` is 1 and 2."""
    first, second = (msgspec.structs.replace(arm, twin=twin) for twin in (1, 2))
    return first, second


def assess_aa_test(figures: Figures) -> AAResult | None:
    """Judge the complete comparisons of an A/A test; None for any other run, or if none is complete."""
    config = figures.run.config
    if config.comparisons is None:
        return None
    first, second = (arm.label for arm in config.arms)
    ratios = log_ratios(figures, second, first)
    each = config.rounds // config.comparisons
    judged = []
    for at in range(0, len(ratios) - each + 1, each):
        # Each comparison is judged as if a run had its rounds only.
        accept = partial(withhold, figures.within(range(at + 1, at + each + 1)), first)
        judged.append(judge({second: ratios[at : at + each]}, fewest=FIRST_LOOK, accept=accept)[second])
    if not judged:
        return None
    false = sum(verdict.kind in {"faster", "slower"} for verdict in judged)
    low, high = binomial_interval(false, len(judged))
    return AAResult(
        arm=msgspec.structs.replace(config.arms[0], twin=0).label,
        recorded=len(ratios),
        rounds_each=each,
        verdicts=judged,
        false_differences=false,
        rate=false / len(judged),
        low=low,
        high=high,
    )
