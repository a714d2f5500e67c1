"""Rank the arms of a run by verdicts, and find the fastest arm."""

from __future__ import annotations

import math
import statistics
from functools import partial

import msgspec

from compare.analysis.budget import looks
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.step_times import step_seconds
from compare.analysis.uneven import withhold
from compare.analysis.verdict import Verdict, judge
from compare.schema.arms import Arm
from compare.schema.results import Run


def log_ratios(run: Run, arm: Arm, other: Arm) -> list[float]:
    """Return ln(other's step time / this arm's) of each common round, in order of rounds."""
    others = _times(run, other)
    return [math.log(others[round_] / own) for round_, own in _times(run, arm).items() if round_ in others]


def paired_log_ratios(run: Run, baseline: str) -> dict[str, list[float]]:
    """Return ln(the baseline's step time / the arm's) of each round that all arms have, by arm.

    The arms are those that synchronise, without the baseline. The result is empty without a common round or
    without an arm to compare.
    """
    rivals = {arm.label: arm for arm in run.config.synchronising}
    rivals.setdefault(baseline, next(arm for arm in run.config.arms if arm.label == baseline))
    times = {name: _times(run, arm) for name, arm in rivals.items()}
    rounds = sorted(set.intersection(*map(set, times.values())))
    if not rounds or len(rivals) == 1:
        return {}
    return {
        name: [math.log(times[baseline][r] / own[r]) for r in rounds]
        for name, own in times.items()
        if name != baseline
    }


def verdicts(run: Run, baseline: str) -> dict[str, Verdict]:
    """Judge every arm that synchronises against the baseline, and return the verdicts by arm.

    The rounds are those that all of these arms have; without any, the result is empty. A verdict that uneven
    load may explain is withheld.
    """
    ratios = paired_log_ratios(run, baseline)
    if not ratios:
        return {}
    return judge(ratios, looks(run), fewest=FIRST_LOOK, accept=partial(withhold, run, baseline))


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """The arm with the shortest step, and the arms that may be as fast."""

    first: str
    """Label of the arm with the shortest step."""
    rivals: list[str]
    """Labels of the other arms that are not shown to be slower than the first."""
    equivalent: bool
    """Whether all rivals are equivalent to the first; False without rivals."""
    rounds_to_settle: int | None
    """About how many more rounds settle all open rivals; None if none is open, or one cannot be settled."""

    @property
    def fastest(self) -> str | None:
        """Return the label of the first arm if every other arm is slower, else None."""
        return None if self.rivals else self.first


def find_lead(run: Run) -> Lead | None:
    """Compare all arms that synchronise with the quickest of them.

    None with fewer than two such arms, if one has no launch, or without a common round.
    """
    times = {arm.label: _times(run, arm).values() for arm in run.config.synchronising}
    if len(times) < 2 or not all(times.values()):  # noqa: PLR2004 -- a comparison takes two
        return None
    first = min(times, key=lambda arm: statistics.geometric_mean(times[arm]))
    judged = {arm: verdict for arm, verdict in verdicts(run, first).items() if arm in times}
    if not judged:
        return None
    rivals = {arm: verdict for arm, verdict in judged.items() if verdict.kind != "slower"}
    open_ones = [verdict for verdict in rivals.values() if verdict.kind == "unresolved"]
    more = [verdict.rounds_to_settle for verdict in open_ones]
    return Lead(
        first=first,
        rivals=list(rivals),
        equivalent=bool(rivals) and not open_ones,
        rounds_to_settle=max(filter(None, more), default=None) if None not in more else None,
    )


def _times(run: Run, arm: Arm) -> dict[int, float]:
    """Return the arm's step time by round."""
    return {launch.round: step_seconds(launch) for launch in run.of(arm)}
