"""Judge what load does to ratios, what noise hides, and how turns and launches spread.

An arm that polls may lead on a quiet machine and fall behind on a busy one, and one mean ratio hides that. So
the ratio of every pass is regressed on the control's wall time over its CPU time, both on the log scale. The
control's step time would show the load less well, because it also changes with the speed of the machine.

Another program may also run while one arm trains, and rest while its rival does. No timing can tell that from
a slower arm, but the kernel counts the busy time of the CPUs in the turns of every arm. It is compared in
cores, because a busy core delays the ranks of 64 CPUs as it delays those of two. A verdict is withheld if the
t interval of the difference excludes zero, because the far end of that interval shows how much the load may
explain. ``docs/method.md`` has the reasons, and what was measured and simulated.

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

from compare.analysis.budget import elapsed_seconds, is_oversubscribed
from compare.analysis.estimate import t_interval
from compare.analysis.figures import Figures, LaunchFigures
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.verdict import LARGEST_LOG, Verdict
from compare.schema.results import Launch, Run

LEVEL = 0.001
"""Level of the test for all arms together, if passes are independent; those of one cohort are alike."""
CHANGES = 0.25
"""A ratio that changes by less than this share between quiet and busy passes is not reported."""
LOAD_CHANGES = 0.1
"""The load must change by this share between these passes, which it does not on a quiet machine."""
_FEWEST_PASSES = 12
_TENTH = 10
NEGLIGIBLE_CORES = 0.1
"""Largest difference in other load that does not matter.

On a quiet machine the difference is smaller, because it is only the kernel's work for an arm, and rounding.
"""
SLOWDOWN = 3.0
"""Number of step times that one busy core is assumed to add to a step.

All ranks wait for the rank that shares its core. The value is more than was measured.
"""
ONE_SIDED = 0.05
"""Probability that one end of the load's interval is wrong."""
POWER = 0.8
"""Probability of finding a difference."""
NOISE_LIMIT = 0.25
"""Largest half-width of an interval that still tells something; 0.25 is a factor of 1.25 either way."""
_FEWEST_ROUNDS = 3
"""Fewest rounds with which verdicts, and not noisy rounds, show whether noise hides all."""
_BUDGET_STEP_SECONDS = 60
_FEWEST_ARMS = 3
_FEWEST_TURNS = 2
_LEAST_SHARE = 0.25
"""No arm's spread counts as less than this share of the largest, because few turns give a rough estimate."""


# ---- ratios that change with the load ----


class LoadDependence(msgspec.Struct, frozen=True, kw_only=True):
    """An arm whose ratio to the baseline changes with the load."""

    arm: str
    quiet_cores: float
    """The control's CPU time over its wall time: geometric mean over the quietest tenth of all passes."""
    busy_cores: float
    """The same over the busiest tenth of all passes."""
    quiet_ratio: float
    """Baseline's step time over the arm's at the load of the quietest passes, by the fitted line."""
    busy_ratio: float
    """The same at the load of the busiest passes."""
    p: float
    """Two-sided p of the hypothesis that the ratio does not change with the load."""


def find_load_dependence(figures: Figures) -> list[LoadDependence]:
    """Find the arms whose ratio to the baseline changes with the load.

    The list is empty without turns, without a control, if the control is the baseline, and if threads
    outnumber the cores. An arm with fewer than 12 passes is not tested.
    """
    run, rivals = figures.run, figures.run.config.rivals
    control, baseline = run.config.control, run.config.baseline
    in_turns = run.interleaved.mode == "blocks"
    if control is None or baseline == control.label or is_oversubscribed(run) or not in_turns:
        return []
    of_control, of_baseline = figures.turns(control.label), figures.turns(baseline)
    found = []
    for rival in rivals:
        own = figures.turns(rival.label)
        passes = [
            (-math.log(of_control[one].cores), math.log(of_baseline[one].seconds / own[one].seconds))
            for one in own.keys() & of_baseline.keys() & of_control.keys()
            if of_control[one].cores > 0
        ]
        if len(passes) >= _FEWEST_PASSES:
            found.append(_judge(rival.label, passes, level=LEVEL / len(rivals)))
    return [dependence for dependence in found if dependence]


def _judge(arm: str, passes: Sequence[tuple[float, float]], *, level: float) -> LoadDependence | None:
    """Judge one arm by the loads of passes and its ratios in them, both as logarithms."""
    loads, ratios = zip(*sorted(passes), strict=True)
    tenth = max(1, len(loads) // _TENTH)
    quiet, busy = statistics.fmean(loads[:tenth]), statistics.fmean(loads[-tenth:])
    if busy - quiet < math.log1p(LOAD_CHANGES):
        return None
    slope, intercept = statistics.linear_regression(loads, ratios)
    if abs(slope) * (busy - quiet) < math.log1p(CHANGES):
        return None
    if (p := _p_of_no_slope(loads, ratios)) > level:
        return None
    return LoadDependence(
        arm=arm,
        quiet_cores=math.exp(-quiet),
        busy_cores=math.exp(-busy),
        quiet_ratio=math.exp(intercept + slope * quiet),
        busy_ratio=math.exp(intercept + slope * busy),
        p=p,
    )


def _p_of_no_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the two-sided p of the t test that a regression's slope is zero.

    Neither ``x`` nor ``y`` may be constant.
    """
    from scipy.special import stdtr

    r = statistics.correlation(x, y)
    rest = max(0.0, 1 - r * r)
    t = abs(r) * math.sqrt((len(x) - 2) / rest) if rest else math.inf
    return 2 * float(stdtr(len(x) - 2, -t))


# ---- verdicts that uneven load may explain ----


def withhold(figures: Figures, baseline: str, name: str, verdict: Verdict) -> Verdict:
    """Return a verdict, which becomes *unresolved* if uneven load may explain it.

    Other load beside the two arms is compared over the common rounds that the verdict has. A difference
    stands if the slower arm has less load, or if its whole interval exceeds what the load can explain.
    """
    if verdict.kind == "unresolved":
        return verdict
    pairs = figures.pairs(name, baseline)[: verdict.n]
    loads = [(own.other_cores, other.other_cores) for own, other in pairs]
    if not may_explain([beside - beside_baseline for beside, beside_baseline in loads], verdict):
        return verdict
    beside, beside_baseline = map(statistics.fmean, zip(*loads, strict=True))
    return msgspec.structs.replace(
        verdict,
        kind="unresolved",
        settled_after=None,
        rounds_to_settle=None,
        uneven_load=(beside, beside_baseline),
    )


def may_explain(differences: Sequence[float], verdict: Verdict) -> bool:
    """Return whether uneven load may have made the difference or equivalence of a verdict.

    Args:
        differences: other load beside the arm minus that beside the baseline, in cores; one value for each
            of two rounds or more.
        verdict: the verdict on the arm from the same rounds.
    """
    low, high = t_interval(differences, ONE_SIDED)
    largest = max(-low, high)
    if low <= 0 <= high or largest <= NEGLIGIBLE_CORES:
        return False
    more = math.copysign(1, low)
    ends = filter(None, (verdict.low, verdict.speed_ratio, verdict.high))
    slower_by = min(-math.log(end) * more for end in ends)
    return verdict.kind == "equivalent" or 0 < slower_by <= math.log1p(SLOWDOWN * largest)


# ---- noise that hides all ----


def hides_all(figures: Figures, verdicts: Sequence[Verdict]) -> bool:
    """Return whether noise hides every difference between the arms.

    It does if every verdict is unresolved after `FIRST_LOOK` rounds or more, with an interval that contains 1
    and is wider than `NOISE_LIMIT`. A ratio that is shown to depend on the load is a difference too. In a run
    of one or two rounds, noise hides all if every round is noisy.

    The answer is False for an A/A test, which measures the noise itself. It is False too for a single arm,
    and if threads outnumber the cores, because then no arm is ranked in any case.
    """
    run = figures.run
    if run.config.comparisons is not None or is_oversubscribed(run) or len(run.config.arms) == 1:
        return False
    rounds = len({launch.round for launch in run.launches})
    if rounds < _FEWEST_ROUNDS:
        return len(figures.noisy_rounds) == rounds > 0
    are_open = all(verdict.kind == "unresolved" and verdict.n >= FIRST_LOOK for verdict in verdicts)
    are_wide = all(
        low is None or high is None or (low <= 1 <= high and half_width(low, high) > 1 + NOISE_LIMIT)
        for low, high in ((verdict.low, verdict.high) for verdict in verdicts)
    )
    return bool(verdicts) and are_open and are_wide and not find_load_dependence(figures)


def half_width(low: float, high: float) -> float:
    """Return the factor by which an interval of ratios reaches up or down from its geometric centre."""
    return math.sqrt(high / low)


def narrowest(verdicts: Sequence[Verdict]) -> float | None:
    """Return the smallest half-width from `FIRST_LOOK` rounds on, as a factor; None without an interval."""
    judged = [verdict for verdict in verdicts if verdict.n >= FIRST_LOOK]
    return min((half_width(v.low, v.high) for v in judged if v.low and v.high), default=None)


def budget_to_rank(run: Run, width: float) -> int:
    """Return about how many seconds a run takes until an interval's half-width is below the limit.

    ``width`` is the half-width so far, as a factor. Its logarithm falls with the square root of the rounds,
    which go on at the pace so far. The result is at least twice the time so far, in whole minutes.
    """
    factor = max(2.0, (math.log(width) / math.log1p(NOISE_LIMIT)) ** 2)
    return math.ceil(elapsed_seconds(run) * factor / _BUDGET_STEP_SECONDS) * _BUDGET_STEP_SECONDS


def would_have_seen(verdict: Verdict) -> float | None:
    """Return the relative difference that a run like this one would find with a probability of `POWER`.

    The difference follows from the spread, the number of rounds and the level of the arm's own interval.
    Earlier looks may find such a difference too, so the true probability is a little higher. To be found, a
    difference also needs an estimate beyond the margin. If that is as hard to reach as significance, the true
    probability is as low as 0.7.

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
    length. The result is the root of the mean variance over cohorts. Negative variances of a cohort count as
    they are, so that this mean has no bias. No spread is below a quarter of the largest. All spreads are 1 if
    no cohort has two passes, or if no mean is positive.
    """
    labels = [arm.label for arm in run.config.arms]
    variances = [found for launches in cohorts(run) if (found := _variances(launches))]
    means = {label: statistics.fmean(own[label] for own in variances) for label in labels if variances}
    largest = max(means.values(), default=0.0)
    if largest <= 0:
        return dict.fromkeys(labels, 1.0)
    return {label: math.sqrt(max(mean, _LEAST_SHARE**2 * largest)) for label, mean in means.items()}


def launch_variance(run: Run, arm: str, other: str) -> float | None:
    """Return the variance between cohorts of two arms' mean log ratio, beyond what their turns explain.

    The result may be negative by chance. It is None with fewer than two cohorts of two passes.
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
    """Return the launches of each round that has one launch of every arm, which take turns."""
    of_round: dict[int, list[Launch]] = {}
    for launch in run.launches:
        of_round.setdefault(launch.round, []).append(launch)
    return [launches for launches in of_round.values() if len(launches) == len(run.config.arms)]


def _variances(launches: Sequence[Launch]) -> dict[str, float]:
    """Return, by arm, the variance of ln(step time) over the turns of one cohort, times a turn's seconds.

    A residual is what the means of arm and pass leave. Its variance is s^2 (1 - 2 / n) + S / n^2 for n arms,
    where s belongs to the arm and S is the sum of all s^2. Two arms do not show which of them is the noisy
    one, so they get the same variance. Three or more do: F. E. Grubbs, "On estimating precision of measuring
    instruments and product variability", Journal of the American Statistical Association 43 (1948). The
    result is empty with one arm, or with fewer than two passes that all arms have.
    """
    times = {launch.arm: LaunchFigures(launch).turns for launch in launches}
    turns = sorted(set.intersection(*map(set, times.values())))
    n = len(times)
    if n < 2 or len(turns) < _FEWEST_TURNS:  # noqa: PLR2004 -- a pass of one arm has no residual
        return {}
    logs = {arm: [math.log(own[turn].seconds) for turn in turns] for arm, own in times.items()}
    of_pass = [statistics.fmean(column) for column in zip(*logs.values(), strict=True)]
    residuals = {
        arm: statistics.variance([x - mean for x, mean in zip(own, of_pass, strict=True)])
        for arm, own in logs.items()
    }
    total = sum(residuals.values()) * n / (n - 1)
    found = {}
    for launch in launches:
        blocks = [b for b in launch.ranks[0].blocks if b.mode == "training" and not b.phases]
        seconds = sum(block.wall_ns for block in blocks) / 1e9 / len({block.turn for block in blocks})
        alone = total / n if n < _FEWEST_ARMS else (residuals[launch.arm] - total / n**2) / (1 - 2 / n)
        found[launch.arm] = alone * seconds
    return found
