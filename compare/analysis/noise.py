"""Judge what load does to ratios, what noise hides, and how turns and launches spread.

Arms that take turns do so in passes: in each pass, every arm has one turn. The launches of one round that
take turns are a cohort. An arm that polls may lead on a quiet machine and fall behind on a busy one, and one
mean ratio hides that. So the ratio of every pass is regressed on the control's wall time over its CPU time,
both on the log scale. The control's step time would show the load less well, because it also changes with the
speed of the machine.

Another program may also run while one arm trains, and rest while its rival does. No timing can tell that from
a slower arm, but the kernel counts the busy time of the CPUs in the turns of every arm. It is compared in
cores, because a busy core delays the ranks of 64 CPUs as it delays those of two. A verdict is withheld if the
t interval of the difference excludes zero, because the far end of that interval shows how much the load may
explain. ``docs/method.md`` states the limits of both tests, and what they do not see.

Power is the probability that a true difference is found. Its usual value is 0.8 (J. Cohen, "Statistical
power analysis for the behavioral sciences", 2nd ed., 1988). The t statistic of n paired rounds follows the
noncentral t distribution. Its noncentrality is difference * sqrt(n) / spread (N. L. Johnson and B. L. Welch,
"Applications of the non-central t-distribution", Biometrika 31, 1940). At one noncentrality, t exceeds its
critical value with a probability of 0.8. The difference is this noncentrality times spread / sqrt(n).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from compare.analysis.budget import FIRST_LOOK, elapsed_seconds, is_oversubscribed
from compare.analysis.figures import Figures, LaunchFigures, t_interval
from compare.analysis.verdict import LARGEST_LOG, Verdict
from compare.schema.results import Launch, Run

LEVEL = 0.001
"""Level of the test for all arms together, if passes are independent; but those of a cohort are alike."""
LEAST_RATIO_CHANGE = 0.25
"""A ratio that changes by less than this share between quiet and busy passes is not reported."""
LEAST_LOAD_CHANGE = 0.1
"""The load must change by this share between those passes, which it does not on a quiet machine."""
_FEWEST_PASSES = 12
_TENTH = 10
NEGLIGIBLE_CORES = 0.1
"""A difference of this many cores in other load does not matter.

On a quiet machine the difference is smaller, because it is only the kernel's work for an arm, and rounding.
"""
SLOWDOWN_PER_CORE = 3.0
"""One core that other programs keep busy is assumed to add this multiple of the step time to a step.

All ranks wait for the rank that shares its core. The value is more than was measured.
"""
LOAD_ALPHA = 0.05
"""Probability that the true load lies beyond one given end of its interval."""
POWER = 0.8
"""Probability with which a run finds a true difference of the size that `would_have_seen` returns."""
NOISE_LIMIT = 0.25
"""An interval with a larger half-width tells nothing; 0.25 is a factor of 1.25 either way."""
_FEWEST_ROUNDS = 3
"""From this number of rounds on, verdicts show whether noise hides all; before, noisy rounds do."""
_BUDGET_STEP_SECONDS = 60
_FEWEST_ARMS = 3
_FEWEST_TURNS = 2
_LEAST_SPREAD = 0.25
"""An arm's spread counts as at least this share of the largest, because few turns give a rough estimate."""


# ---- ratios that change with the load ----


class LoadDependence(msgspec.Struct, frozen=True, kw_only=True):
    """An arm whose ratio to the baseline changes with the load."""

    arm: str
    quiet_cores: float
    """Cores that a rank of the control got: geometric mean over the quietest tenth of all passes."""
    busy_cores: float
    """Cores that a rank of the control got: geometric mean over the busiest tenth of all passes."""
    quiet_ratio: float
    """Baseline's step time over the arm's at the load of the quietest passes, by the fitted line."""
    busy_ratio: float
    """Baseline's step time over the arm's at the load of the busiest passes, by the fitted line."""
    p: float
    """Two-sided p-value of the hypothesis that the ratio does not change with the load."""


def find_load_dependence(figures: Figures) -> list[LoadDependence]:
    """Return the arms whose ratio to the baseline changes with the load of the machine.

    The list is empty without turns, without a control, if the control is the baseline, and if threads
    outnumber the cores. An arm with fewer than 12 passes is not tested.
    """
    run, rivals = figures.run, figures.run.config.rivals
    control, baseline = run.config.control, run.config.baseline
    in_turns = run.interleaved.mode == "blocks"
    if control is None or baseline == control.label or is_oversubscribed(run) or not in_turns:
        return []
    of_control, of_baseline = figures.turns(control.label), figures.turns(baseline)
    judged = []
    for rival in rivals:
        of_rival = figures.turns(rival.label)
        passes = [
            (-math.log(of_control[one].cores), math.log(of_baseline[one].seconds / of_rival[one].seconds))
            for one in of_rival.keys() & of_baseline.keys() & of_control.keys()
            if of_control[one].cores > 0
        ]
        if len(passes) >= _FEWEST_PASSES:
            judged.append(_load_dependence(rival.label, passes, level=LEVEL / len(rivals)))
    return [dependence for dependence in judged if dependence]


def _load_dependence(
    arm: str, passes: Sequence[tuple[float, float]], *, level: float
) -> LoadDependence | None:
    """Return how an arm's ratio depends on the load; None if that is not shown.

    ``passes`` has the logarithms of the load and of the ratio in each pass.
    """
    loads, ratios = zip(*sorted(passes), strict=True)
    tenth = max(1, len(loads) // _TENTH)
    quiet, busy = statistics.fmean(loads[:tenth]), statistics.fmean(loads[-tenth:])
    if busy - quiet < math.log1p(LEAST_LOAD_CHANGE):
        return None
    slope, intercept = statistics.linear_regression(loads, ratios)
    if abs(slope) * (busy - quiet) < math.log1p(LEAST_RATIO_CHANGE):
        return None
    from scipy.special import stdtr

    # A two-sided t test of the hypothesis that the slope is zero.
    r = statistics.correlation(loads, ratios)
    rest = max(0.0, 1 - r * r)
    t = abs(r) * math.sqrt((len(loads) - 2) / rest) if rest else math.inf
    if (p := 2 * float(stdtr(len(loads) - 2, -t))) > level:
        return None
    return LoadDependence(
        arm=arm,
        quiet_cores=math.exp(-quiet),
        busy_cores=math.exp(-busy),
        quiet_ratio=math.exp(intercept + slope * quiet),
        busy_ratio=math.exp(intercept + slope * busy),
        p=p,
    )


# ---- verdicts that uneven load may explain ----


def withhold(figures: Figures, baseline: str, name: str, verdict: Verdict) -> Verdict:
    """Return the verdict on the arm ``name``, made *open* if uneven load may explain it.

    The load of other processes beside the arm and beside the baseline is compared over the verdict's rounds.
    A difference stands if the slower arm had less load, or if its whole interval exceeds what the load
    explains.
    """
    if verdict.kind == "open":
        return verdict
    pairs = figures.pairs(name, baseline)[: verdict.n]
    loads = [(arm.other_cores, other.other_cores) for arm, other in pairs]
    if not may_explain([beside - beside_baseline for beside, beside_baseline in loads], verdict):
        return verdict
    beside, beside_baseline = map(statistics.fmean, zip(*loads, strict=True))
    return msgspec.structs.replace(
        verdict,
        kind="open",
        settled_after=None,
        rounds_to_settle=None,
        uneven_load=(beside, beside_baseline),
    )


def may_explain(differences: Sequence[float], verdict: Verdict) -> bool:
    """Return whether uneven load may explain the difference or the equivalence that a verdict states.

    Args:
        differences: cores that other processes used beside the arm minus those beside the baseline, in each
        of
            two rounds or more.
        verdict: the verdict on the arm from the same rounds.
    """
    low, high = t_interval(differences, LOAD_ALPHA)
    largest = max(-low, high)
    if low <= 0 <= high or largest <= NEGLIGIBLE_CORES:
        return False
    more = math.copysign(1, low)
    ends = filter(None, (verdict.low, verdict.speed_ratio, verdict.high))
    slower_by = min(-math.log(end) * more for end in ends)
    return verdict.kind == "same" or 0 < slower_by <= math.log1p(SLOWDOWN_PER_CORE * largest)


# ---- noise that hides all ----


def hides_all(figures: Figures, verdicts: Sequence[Verdict]) -> bool:
    """Return whether noise hides every difference between the arms.

    It does if every verdict is open after `FIRST_LOOK` rounds or more, with an interval that contains 1
    and has a half-width above `NOISE_LIMIT`. A ratio that is shown to depend on the load is a difference too,
    so noise does not hide it. In a run of one or two rounds, noise hides all if every round is noisy.

    The answer is False for an A/A test, which measures the noise itself. It is False too for a single arm,
    and if threads outnumber the cores, because then no arm is ranked in any case.
    """
    run = figures.run
    if run.config.comparisons is not None or is_oversubscribed(run) or len(run.config.arms) == 1:
        return False
    rounds = len({launch.round for launch in run.launches})
    if rounds < _FEWEST_ROUNDS:
        return len(figures.noisy_rounds) == rounds > 0
    are_open = all(verdict.kind == "open" and verdict.n >= FIRST_LOOK for verdict in verdicts)
    are_wide = all(
        low is None or high is None or (low <= 1 <= high and half_width(low, high) > 1 + NOISE_LIMIT)
        for low, high in ((verdict.low, verdict.high) for verdict in verdicts)
    )
    return bool(verdicts) and are_open and are_wide and not find_load_dependence(figures)


def half_width(low: float, high: float) -> float:
    """Return the factor from the geometric centre of an interval of ratios to either of its ends."""
    return math.sqrt(high / low)


def narrowest_half_width(verdicts: Sequence[Verdict]) -> float | None:
    """Return the smallest half-width of a verdict with `FIRST_LOOK` rounds or more, as a factor, or None."""
    judged = [verdict for verdict in verdicts if verdict.n >= FIRST_LOOK]
    return min((half_width(v.low, v.high) for v in judged if v.low and v.high), default=None)


def budget_to_rank(run: Run, width: float) -> int:
    """Return about how many seconds a run takes until its narrowest interval tells something.

    ``width`` is the half-width of this interval so far, as a factor. Its logarithm falls with the square root
    of the rounds, which go on at the pace so far. The result is at least twice the time so far, rounded up to
    whole minutes.
    """
    factor = max(2.0, (math.log(width) / math.log1p(NOISE_LIMIT)) ** 2)
    return math.ceil(elapsed_seconds(run) * factor / _BUDGET_STEP_SECONDS) * _BUDGET_STEP_SECONDS


def would_have_seen(verdict: Verdict) -> float | None:
    """Return the relative difference that a run like this one would find with a probability of `POWER`.

    It follows from the spread, the number of rounds and the level of the arm's own interval. Earlier looks
    may find such a difference too, so the true probability is a little higher. But a difference is found only
    if its estimate exceeds the margin. If that is as hard to reach as significance, the true probability is
    as low as 0.7.

    None before `FIRST_LOOK` rounds, which settle nothing, and for a verdict that uneven load may explain.
    """
    from scipy.special import nctdtrinc, ndtri, stdtrit

    low, high = verdict.low, verdict.high
    if low is None or high is None or verdict.n < FIRST_LOOK or verdict.uneven_load:
        return None
    freedom, critical = verdict.n - 1, -float(stdtrit(verdict.n - 1, (1 - verdict.level) / 2))
    standard_error = math.log(high / low) / 2 / critical
    significant = standard_error * nctdtrinc(freedom, 1 - POWER, critical)
    beyond = math.log1p(verdict.margin) + standard_error * ndtri(POWER)
    return math.expm1(min(max(significant, beyond), LARGEST_LOG))


# ---- how turns and launches spread ----


def turn_spreads(run: Run) -> dict[str, float]:
    """Return, by arm, the standard deviation of ln(step time) that turns of one second would have.

    The logarithm of a step time is the sum of an effect of the arm, one of the pass (the speed of the machine
    at that time), and the noise of the turn. That noise is assumed to fall with the root of the turn's
    length. The result is the root of the mean variance over cohorts. A cohort's estimate of a variance may be
    negative, and counts as it is, so that the mean has no bias. No spread is below a quarter of the largest.
    All spreads are 1 if no cohort has two passes, or if no mean is positive.
    """
    labels = [arm.label for arm in run.config.arms]
    variances = [by_arm for launches in cohorts(run) if (by_arm := _variances_per_second(launches))]
    means = {label: statistics.fmean(by_arm[label] for by_arm in variances) for label in labels if variances}
    largest = max(means.values(), default=0.0)
    if largest <= 0:
        return dict.fromkeys(labels, 1.0)
    return {label: math.sqrt(max(mean, _LEAST_SPREAD**2 * largest)) for label, mean in means.items()}


def launch_variance(run: Run, arm: str, other: str) -> float | None:
    """Return how much two arms' mean log ratio varies between cohorts, beyond what their turns explain.

    The result is an estimate of a variance, so it may be negative by chance. It is None with fewer than two
    cohorts of two passes or more.
    """
    means, explained = [], []
    for launches in cohorts(run):
        turns = {launch.arm: LaunchFigures(launch).turns for launch in launches}
        both = turns[arm].keys() & turns[other].keys()
        ratios = [math.log(turns[other][turn].seconds / turns[arm][turn].seconds) for turn in sorted(both)]
        if len(ratios) >= _FEWEST_TURNS:
            means.append(statistics.fmean(ratios))
            explained.append(statistics.variance(ratios) / len(ratios))
    if len(means) < _FEWEST_TURNS:
        return None
    return statistics.variance(means) - statistics.fmean(explained)


def cohorts(run: Run) -> list[list[Launch]]:
    """Return the launches of each round in which every arm has one; in a run with turns, they took turns."""
    by_round: dict[int, list[Launch]] = {}
    for launch in run.launches:
        by_round.setdefault(launch.round, []).append(launch)
    return [launches for launches in by_round.values() if len(launches) == len(run.config.arms)]


def _variances_per_second(launches: Sequence[Launch]) -> dict[str, float]:
    """Return, by arm, the variance of ln(step time) over the turns of one cohort, times a turn's seconds.

    A residual is what remains of a value after the means of its arm and its pass are subtracted. Its variance
    is s^2 (1 - 2 / n) + S / n^2 for n arms, where s belongs to the arm and S is the sum of all s^2. Two arms
    do not show which of them is the noisy one, so they get the same variance. Three or more do: F. E. Grubbs,
    "On estimating precision of measuring instruments and product variability", Journal of the American
    Statistical Association 43 (1948). The result is empty with one arm, or with fewer than two passes that
    all arms have.
    """
    times = {launch.arm: LaunchFigures(launch).turns for launch in launches}
    turns = sorted(set.intersection(*map(set, times.values())))
    n = len(times)
    if n < 2 or len(turns) < _FEWEST_TURNS:  # noqa: PLR2004 -- a pass of one arm has no residual
        return {}
    logs = {arm: [math.log(by_turn[turn].seconds) for turn in turns] for arm, by_turn in times.items()}
    of_pass = [statistics.fmean(column) for column in zip(*logs.values(), strict=True)]
    residuals = {
        arm: statistics.variance([x - mean for x, mean in zip(of_arm, of_pass, strict=True)])
        for arm, of_arm in logs.items()
    }
    total = sum(residuals.values()) * n / (n - 1)
    variances = {}
    for launch in launches:
        blocks = [b for b in launch.ranks[0].blocks if b.mode == "training" and not b.phases]
        seconds = sum(block.wall_ns for block in blocks) / 1e9 / len({block.turn for block in blocks})
        variance = total / n if n < _FEWEST_ARMS else (residuals[launch.arm] - total / n**2) / (1 - 2 / n)
        variances[launch.arm] = variance * seconds
    return variances
