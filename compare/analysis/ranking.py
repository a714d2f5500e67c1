"""Rank the arms of a run: verdicts, noise floor, fastest arm."""

from __future__ import annotations

import math
import statistics

from compare.analysis.budget import looks
from compare.analysis.estimate import t_quantile
from compare.analysis.step_times import step_seconds
from compare.analysis.verdict import FIRST_LOOK, Verdict, judge
from compare.schema.arms import Arm
from compare.schema.results import Run


def log_ratios(run: Run, arm: Arm, other: Arm) -> list[float]:
    """Return ln(other's step time / this arm's) of common rounds."""
    others = _times(run, other)
    return [math.log(others[round_] / own) for round_, own in _times(run, arm).items() if round_ in others]


def paired_log_ratios(run: Run, baseline: str) -> dict[str, list[float]]:
    """Return ln(the baseline's step time / the arm's) of common rounds, by arm.

    The arms are those that synchronise. Without a common round, or an arm to compare, there is none.
    """
    rivals = {arm.label: arm for arm in run.config.arms if arm.synchronises}
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
    """Judge every arm that synchronises against the baseline, over the common rounds."""
    ratios = paired_log_ratios(run, baseline)
    return judge(ratios, looks(run), fewest=FIRST_LOOK) if ratios else {}


def noise_floor(run: Run) -> float | None:
    """Return the relative difference that two equal arms may show.

    They stay below it 19 times in 20. The residuals of the log step times come from a two-way layout, by arm
    and round. The half-width is that of a paired comparison with as many rounds: t sqrt(2 s^2 / n).
    """
    times = {arm.label: {r: math.log(own) for r, own in _times(run, arm).items()} for arm in run.config.arms}
    rounds = sorted(set.intersection(*map(set, times.values())))
    freedom = (len(times) - 1) * (len(rounds) - 1)
    if freedom < 2:  # noqa: PLR2004 -- with one degree of freedom the interval is useless
        return None
    of_arm = {arm: statistics.fmean(own[r] for r in rounds) for arm, own in times.items()}
    of_round = {r: statistics.fmean(own[r] for own in times.values()) for r in rounds}
    overall = statistics.fmean(of_arm.values())
    squares = sum(
        (own[r] - of_arm[arm] - of_round[r] + overall) ** 2 for arm, own in times.items() for r in rounds
    )
    return math.expm1(t_quantile(freedom) * math.sqrt(2 * squares / freedom / len(rounds)))


def fastest_arm(run: Run) -> str | None:
    """Return the arm against which every other arm that synchronises is slower."""
    times = {arm.label: _times(run, arm).values() for arm in run.config.arms if arm.synchronises}
    if len(times) < 2 or not all(times.values()):  # noqa: PLR2004 -- a comparison takes two
        return None
    first = min(times, key=lambda arm: statistics.geometric_mean(times[arm]))
    others = [verdict for arm, verdict in verdicts(run, first).items() if arm in times]
    return first if others and all(verdict.kind == "slower" for verdict in others) else None


def _times(run: Run, arm: Arm) -> dict[int, float]:
    """Return the arm's step time in each round."""
    return {launch.round: step_seconds(launch) for launch in run.of(arm)}
