"""Judge whether an arm is faster than another, from paired rounds.

A look judges all arms after some number of rounds. A run with a fixed number of rounds has a single look.

* **One arm.** A paired t test on ln(the baseline's step time / the arm's), one value per round. Swapping the
  two changes only the sign. Noise that is proportional to the step time has one size on that scale.
* **Several arms.** Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6
  (1979). The k-th smallest of K p-values must be at most alpha / (K - k + 1), and all before it must pass.
  That bounds the false differences of a run. It does not bound the misses of its intervals: each one has the
  level of its own arm.
* **Several looks.** Alpha is shared out among the looks: see ``budget.py``.
* **All rounds.** A look decides what kind of verdict an arm has. Ratio and interval are those of all rounds,
  so that they agree with the step times of a table. If that ratio contradicts the verdict, the arm becomes
  *open*. That only takes verdicts away, so the level holds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from compare.analysis.budget import ALPHA, Look, levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARGIN = 0.03
"""A relative difference up to this one does not matter."""
_FEWEST_FOR_SPREAD = 2
"""A spread is computed from this number of rounds or more."""
_MOST_ROUNDS = 10_000
"""More further rounds are not considered, because an effect that needs more lies on the margin."""
LARGEST_LOG = 700.0
"""No ratio with a larger absolute logarithm is computed, because the largest double is e to the 709."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on one arm against the baseline."""

    kind: Literal["faster", "slower", "same", "open"]
    """Whether there is a difference, by the look that settled the arm.

    - *faster* or *slower*: the interval excludes 1, and the estimate exceeds the margin
    - *same*: the whole interval lies within the margin; in a gate, ``least`` does
    - *open*: no look settled the arm, the ratio of all rounds lies on the other side, or uneven load
      may explain the difference
    """
    speed_ratio: float
    """Baseline's step time divided by the arm's, as the geometric mean of all rounds; above 1 is faster."""
    low: float | None
    """Lower end of the ratio's interval over all rounds; None for one round, or if JSON cannot hold it."""
    high: float | None
    """Upper end of the same interval."""
    level: float
    """Confidence level of this interval, which is higher the more arms and looks a run has.

    It is the level at the look that settled the arm, or at the last look.
    """
    p: float
    """Two-sided p-value of no difference for this arm alone, at the look that settled it or the last one."""
    p_adjusted: float
    """The p-value after Holm's correction over all arms of that look."""
    n: int
    """Number of paired rounds."""
    settled_after: int | None = None
    """Number of rounds after which a look settled the arm; None while it is open."""
    margin: float
    """A relative difference up to this fraction does not matter."""
    rounds_to_settle: int | None
    """About how many more rounds with the same spread settle an *open* arm.

    None if the arm is settled, has one round or uneven load, or needs more than 10,000 rounds.
    """
    uneven_load: tuple[float, float] | None = None
    """Cores that other processes used beside the arm and the baseline, if they may explain the verdict.

    If they may at the look that would settle the arm, the verdict is *open*. If they may only over all
    rounds, the verdict keeps its kind. None if they explain nothing.
    """
    least: float | None = None
    """Lower end of the one-sided interval of a gate, as a speed ratio.

    Its rounds and its level are those of the look that settled the arm, or of the last look. None outside a
    gate, or for a single round.
    """


def judge(
    log_ratios: Mapping[str, Sequence[float]],
    looks: Sequence[Look] | None = None,
    *,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    fewest: int = 2,
    one_sided: bool = False,
    accept: Callable[[str, Verdict], Verdict] = lambda _, verdict: verdict,
) -> dict[str, Verdict]:
    """Judge every arm against the baseline, and return the verdicts by arm.

    An arm that a look settles keeps the kind of its verdict while later ratios agree with it. An arm whose
    ratio contradicts its verdict at a later look is judged anew from that look on.

    Args:
        log_ratios: by arm, ln(baseline's step time / arm's) of each round, without the baseline itself. An
            arm without rounds gets no verdict, but counts for Holm's correction.
        looks: all looks so far, in order; the default is a single one at all rounds.
        alpha: probability of any false difference, over all arms and looks.
        margin: a relative difference up to this one does not matter. It is symmetric in the logarithm: 0.03
            allows a speed ratio between 1 / 1.03 and 1.03.
        fewest: number of rounds below which no arm is settled, see `FIRST_LOOK`.
        one_sided: whether *same* means not slower by the margin, as in `decide`.
        accept: is called with an arm and its verdict at a look. It returns that verdict, or an open
            one, which the next look judges again.
    """
    import numpy as np

    arms = list(log_ratios)
    rounds = max([1, *(len(values) for values in log_ratios.values())])
    looks = looks or [Look(rounds, rounds)]
    verdicts: dict[str, Verdict] = {}
    settled = Settled.none((len(arms),))
    for look, level in zip(looks, levels(looks, alpha=alpha), strict=True):
        if not level:  # the plan has grown, and the look's share is already spent
            continue
        sample = Sample.of([log_ratios[arm][: look.rounds] for arm in arms])
        pairs = zip(arms, sample.mean, strict=True)
        still = [arm in verdicts and _agrees(verdicts[arm], float(mean)) for arm, mean in pairs]
        settled = Settled(*(each & np.array(still, dtype=bool) for each in settled))
        decision = decide(sample, level, math.log1p(margin), settled, one_sided=one_sided)
        if look.rounds < fewest:
            decision = decision._replace(settled=settled)
        for index, arm in enumerate(arms):
            if sample.n[index] and not (settled.different | settled.equivalent)[index]:
                verdicts[arm] = accept(arm, _verdict(index, sample, decision, margin, fewest))
        settled = decision.settled
    for arm, verdict in verdicts.items():
        over_all = _over_all_rounds(verdict, log_ratios[arm], fewest)
        # Load that may explain all rounds is stated, but only a look decides the kind.
        load = accept(arm, over_all).uneven_load or over_all.uneven_load
        verdicts[arm] = msgspec.structs.replace(over_all, uneven_load=load)
    return verdicts


def _verdict(index: int, sample: Sample, decision: Decision, margin: float, fewest: int) -> Verdict:
    mean, n = float(sample.mean[index]), int(sample.n[index])
    kind: Literal["faster", "slower", "same", "open"] = "open"
    if decision.settled.different[index]:
        kind = "faster" if mean > 0 else "slower"
    elif decision.settled.equivalent[index]:
        kind = "same"
    without_interval = Verdict(
        kind=kind,
        speed_ratio=math.exp(mean),
        low=None,
        high=None,
        level=1 - float(decision.alpha[index]),
        p=float(decision.p[index]),
        p_adjusted=float(decision.p_adjusted[index]),
        n=n,
        settled_after=None if kind == "open" else n,
        margin=margin,
        rounds_to_settle=None,
        least=None if decision.least is None else ratio_of(float(decision.least[index])),
    )
    return _with_interval(without_interval, mean, float(sample.error[index]), n, fewest)


def _over_all_rounds(verdict: Verdict, values: Sequence[float], fewest: int) -> Verdict:
    """Return the verdict with the ratio and the interval of all rounds.

    It becomes *open* if that ratio contradicts it.
    """
    if verdict.n == len(values):
        return verdict
    sample = Sample.of([values])
    mean, error = float(sample.mean[0]), float(sample.error[0])
    if not _agrees(verdict, mean):
        verdict = msgspec.structs.replace(verdict, kind="open", settled_after=None)
    return _with_interval(verdict, mean, error, len(values), fewest)


def _agrees(verdict: Verdict, mean: float) -> bool:
    """Return whether the mean log ratio agrees with the kind of the verdict; False for *open*."""
    is_one_sided, margin = verdict.least is not None, math.log1p(verdict.margin)
    return {
        "faster": mean > 0,
        "slower": mean < 0,
        "same": mean >= -margin if is_one_sided else abs(mean) <= margin,
        "open": False,
    }[verdict.kind]


def _with_interval(verdict: Verdict, mean: float, error: float, n: int, fewest: int) -> Verdict:
    """Return the verdict with another ratio, and its interval at the verdict's level.

    ``mean`` is the mean log ratio of ``n`` rounds, and ``error`` its standard error.
    """
    from scipy.special import stdtrit

    alpha = 1 - verdict.level
    half_width = -float(stdtrit(max(n - 1, 1), alpha / 2)) * error
    low, high = ratios_of(mean, half_width)
    more = None
    if verdict.kind == "open" and n >= _FEWEST_FOR_SPREAD and verdict.uneven_load is None:
        more = _rounds_to_settle(mean, error, n, alpha, verdict.margin)
    return msgspec.structs.replace(
        verdict,
        speed_ratio=math.exp(mean),
        low=low,
        high=high,
        n=n,
        rounds_to_settle=None if more is None else max(fewest - n, more),
    )


def ratio_of(value: float) -> float | None:
    """Return e to the power of ``value``; None if JSON cannot hold that number or its inverse."""
    return math.exp(value) if abs(value) < LARGEST_LOG else None


def ratios_of(mean: float, half_width: float) -> tuple[float, float] | tuple[None, None]:
    """Return the ends of an interval of log ratios as ratios; None for both if JSON cannot hold one."""
    low, high = ratio_of(mean - half_width), ratio_of(mean + half_width)
    return (None, None) if low is None or high is None else (low, high)


def _rounds_to_settle(mean: float, error: float, n: int, alpha: float, margin: float) -> int | None:
    """Return how many more rounds make the interval narrow enough to settle; None beyond `_MOST_ROUNDS`."""
    from scipy.special import stdtrit

    log_margin = math.log1p(margin)
    # An effect beyond the margin must exclude 0; an effect within it must fit in.
    enough = abs(mean) if abs(mean) > log_margin else log_margin - abs(mean)
    spread = error * n**0.5

    def settles(more: int) -> bool:
        return bool(-stdtrit(n + more - 1, alpha / 2) * spread / (n + more) ** 0.5 < enough)

    # The half-width falls with every round.
    more = 1 + bisect_left(range(1, _MOST_ROUNDS + 1), x=True, key=settles)
    return more if more <= _MOST_ROUNDS else None


# ---- all arms at one look, in arrays whose last axis is the arms ----


class Sample(NamedTuple):
    """Mean and standard error of the log ratios of every arm, as arrays whose last axis is the arms."""

    mean: NDArray
    """Mean over the rounds; NaN without a round."""
    error: NDArray
    """Standard error of the mean; NaN with fewer than two rounds."""
    n: NDArray
    """One more than the degrees of freedom: the number of rounds, except for `between`."""

    @classmethod
    def of(cls, values: Sequence[Sequence[float]]) -> Sample:
        """Summarise the log ratios of every arm; arms may have different numbers of rounds."""
        import numpy as np

        return cls(
            np.array([np.mean(v) if len(v) else np.nan for v in values]),
            np.array([np.std(v, ddof=1) / len(v) ** 0.5 if len(v) > 1 else np.nan for v in values]),
            np.array([len(v) for v in values]),
        )

    @classmethod
    def between(cls, old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> Sample:
        """Return, for each arm, the mean in the old run minus that in the new, independent one.

        The spreads of the runs may differ: B. L. Welch, "The generalization of 'Student's' problem when
        several different population variances are involved", Biometrika 34 (1947). Let a and b be s^2 / n of
        the old and the new run. The error of the difference is sqrt(a + b), with
        (a + b)^2 / (a^2 / (n_old - 1) + b^2 / (n_new - 1)) degrees of freedom. The returned ``n`` is one more
        than the degrees of freedom.
        """
        import numpy as np

        first, second = cls.of(old), cls.of(new)
        a, b = first.error**2, second.error**2
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = (a + b) ** 2 / (a**2 / (first.n - 1) + b**2 / (second.n - 1))
        pooled = first.n + second.n - 2  # without any spread
        freedom = np.where(a + b > 0, freedom, pooled)
        return cls(first.mean - second.mean, np.sqrt(a + b), 1 + freedom)


class Settled(NamedTuple):
    """Which arms the looks so far have settled, as boolean arrays whose last axis is the arms."""

    different: NDArray
    """Whether an arm is called faster or slower."""
    equivalent: NDArray
    """Whether an arm is called equivalent."""

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Settled:
        """Return arrays of the given shape in which no arm is settled, as before the first look."""
        import numpy as np

        return cls(np.zeros(shape, bool), np.zeros(shape, bool))


class Decision(NamedTuple):
    """The decision on every arm at one look, as arrays whose last axis is the arms."""

    settled: Settled
    """The arms that this look or an earlier one settled."""
    p: NDArray
    """Two-sided p-value of no difference; 0 or 1 for arms that are already called different or equivalent."""
    p_adjusted: NDArray
    """The p-value after Holm's correction."""
    alpha: NDArray
    """One minus the level of each arm's interval."""
    half_width: NDArray
    """Half-width of each arm's interval, on the log scale."""
    least: NDArray | None = None
    """Lower end of each one-sided interval, on the log scale; None for a two-sided decision."""


def decide(
    sample: Sample, alpha: float, margin: float, before: Settled, *, one_sided: bool = False
) -> Decision:
    """Decide which arms differ and which are equivalent at one look.

    An arm is different if Holm's correction rejects equality and its mean lies beyond ``margin``, which is
    logarithmic. It is equivalent if its whole interval lies within the margin. Arms that are settled in
    ``before`` stay so.

    With ``one_sided``, an arm is equivalent if a one-sided test at alpha shows that it is not slower by the
    margin. This test needs no correction, because a gate passes only if all of its arms do. Such an
    intersection-union test keeps alpha if each of its tests does: R. L. Berger, "Multiparameter hypothesis
    testing and acceptance sampling", Technometrics 24 (1982). No arm is both equivalent and slower, because
    the estimate of an equivalent arm is within the margin.

    Holm and the intervals agree. The interval of an arm that Holm rejects at step k of K has the level of
    that step, 1 - alpha / (K - k + 1), so it excludes 1. All others have the level 1 - alpha / (K - d), with
    d arms called different. Holm rejects at least d arms, so no interval excludes 1 without a rejection.

    An arm that an earlier look called different stays rejected. Holm's proof allows that, because with m
    equal arms at most K - m right rejections come before the first wrong one.
    """
    import numpy as np

    settled_before = before.different | before.equivalent
    p = np.where(before.different, 0.0, np.where(before.equivalent, 1.0, _p_value(sample)))
    arms = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")
    back = np.argsort(order, axis=-1)
    divisors = np.arange(arms, 0, -1)
    ordered = np.take_along_axis(p, order, -1)
    rejected = np.logical_and.accumulate(ordered <= alpha / divisors, axis=-1)
    adjusted = np.maximum.accumulate(np.minimum(1.0, ordered * divisors), axis=-1)
    exceeds = ~settled_before & (np.abs(sample.mean) > margin)
    different = before.different | (np.take_along_axis(rejected, back, -1) & exceeds)
    not_different = np.maximum(arms - different.sum(-1, keepdims=True), 1)
    alphas = np.where(different, alpha / divisors[back], alpha / not_different)
    half_width = _half_width(sample.n, alphas) * sample.error
    least = sample.mean - _half_width(sample.n, np.array(2 * alpha)) * sample.error if one_sided else None
    within = np.abs(sample.mean) + half_width <= margin if least is None else least >= -margin  # NaN is not
    equivalent = before.equivalent | (within & ~different & ~settled_before)
    adjusted = np.take_along_axis(adjusted, back, -1)
    return Decision(Settled(different, equivalent), p, adjusted, alphas, half_width, least)


def _p_value(sample: Sample) -> NDArray:
    """Return the two-sided p-value of the paired t test of every arm.

    With fewer than two rounds p is 1. Rounds without spread have an infinite t, so p is 0, or 1 if the mean
    is 0 too. Real launches always spread, because clocks count nanoseconds.
    """
    import numpy as np
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(sample.mean) / sample.error
    t = np.where((sample.mean == 0) | (sample.n < _FEWEST_FOR_SPREAD), 0.0, t)
    return 2 * stdtr(np.maximum(sample.n - 1, 1), -t)


def _half_width(n: NDArray, alpha: NDArray) -> NDArray:
    """Return the half-width of two-sided intervals at the level 1 - alpha, in standard errors of the mean.

    ``n`` is one more than the degrees of freedom. Both arrays are broadcast together.
    """
    import numpy as np
    from scipy.special import stdtrit

    # Inverting Student's t takes most of the time, and many experiments share few levels, so each pair of n
    # and alpha is inverted once. A complex number is a pair that numpy can sort.
    both = np.asarray(n + 1j * alpha)
    pairs, back = np.unique(both, return_inverse=True)
    return -stdtrit(np.maximum(pairs.real - 1, 1), pairs.imag / 2)[back].reshape(both.shape)
