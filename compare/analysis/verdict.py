"""Judge whether an arm is faster than another, from paired rounds.

One procedure serves all designs: a fixed number of rounds is a single look.

* **One arm.** A paired t test on ln(the baseline's step time / the arm's), one value per round. Swapping the
  two changes only the sign. Noise that grows with step time is even on that scale.
* **Several arms.** Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6
  (1979). The k-th smallest of K p-values must be at most alpha / (K - k + 1), and all before it must pass.
  That bounds the false differences of a run. It does not bound the misses of its intervals: each one has the
  level of its own arm. ``docs/method.md`` has figures.
* **Several looks.** They share alpha out among them: see ``looks.py``.
* **All rounds.** A look decides what kind of verdict an arm has. Ratio and interval are those of all rounds,
  so that the figures of a table divide. If the ratio no longer lies on the verdict's side, the arm is open.
  That only takes verdicts away, so the level holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from compare.analysis.looks import ALPHA, Look, levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARGIN = 0.03
"""Largest relative difference that does not matter."""
_MOST_ROUNDS = 10_000
"""Beyond this the effect is on the margin, and nothing settles it."""
_TWO_ROUNDS = 2
"""One round has no spread."""
_LARGEST_LOG = 700.0
"""The largest double is e to the 709."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on one arm against the baseline."""

    kind: Literal["faster", "slower", "equivalent", "unresolved"]
    """Whether there is a difference, as the look says that settled it.

    - *faster* or *slower*: its interval excludes 1, and its estimate exceeds the margin
    - *equivalent*: its whole interval lies within the margin
    - *unresolved*: no look settled it, or all rounds lie on the other side
    """
    speed_ratio: float
    """Baseline's step time over the arm's, geometric mean of all rounds; above 1 is faster."""
    low: float | None
    """Lower end of the interval over all rounds; None for a single round."""
    high: float | None
    level: float
    """Confidence level of this interval alone, after Holm and spending.

    It is that of the look which settled the arm, or of the last one.
    """
    p: float
    """Two-sided p of no difference, for this arm alone, at the look that settled it or at the last one."""
    p_adjusted: float
    """The same after Holm, for all arms of that look."""
    n: int
    """Number of paired rounds."""
    settled_after: int | None = None
    """Rounds after which a look settled the arm; None while it is unresolved."""
    margin: float
    """The margin, as a fraction."""
    rounds_to_settle: int | None
    """About how many more rounds of the same spread settle it.

    For *unresolved*; None if there is one round, or if more than 10,000 are needed.
    """
    uneven_load: tuple[float, float] | None = None
    """Other load beside the arm and beside the baseline, in cores.

    Given if they may explain the difference. Then the verdict is *unresolved*.
    """
    least: float | None = None
    """Lower end of the one-sided interval of a gate, as a speed ratio.

    Its rounds and its level are those of the look that settled the arm, or of the last one. None for another
    run, or for a single round.
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
    """Judge every arm against the baseline.

    An arm that a look settles keeps the kind of its verdict while the ratio of all rounds agrees with it.

    Args:
        log_ratios: ln(baseline's step time / arm's) of each round, for each arm except the baseline. An arm
            without rounds has no verdict, but counts as compared.
        looks: all looks so far, in order; the default is a single one at all rounds.
        alpha: probability of any false difference, over all arms and looks.
        margin: largest relative difference that does not matter. It is symmetric in the logarithm: 0.03
            allows a speed ratio between 1 / 1.03 and 1.03.
        fewest: rounds below which nothing is settled, see `FIRST_LOOK`.
        one_sided: see `decide`.
        accept: takes an arm and its verdict at a look. It returns that verdict, or an unresolved one: then
            the next look judges the arm again.

    Raises:
        ValueError: a value is no logarithm of a finite ratio, or a setting is out of range.
    """
    _check(log_ratios, alpha, margin)
    arms = list(log_ratios)
    rounds = max([1, *(len(values) for values in log_ratios.values())])
    looks = looks or [Look(rounds, rounds)]
    verdicts: dict[str, Verdict] = {}
    settled = Settled.none((len(arms),))
    for look, level in zip(looks, levels(looks, alpha=alpha), strict=True):
        if not level:  # the plan has grown, and the look's share is already spent
            continue
        sample = Sample.of([log_ratios[arm][: look.rounds] for arm in arms])
        decision = decide(sample, level, math.log1p(margin), settled, one_sided=one_sided)
        if look.rounds < fewest:
            decision = decision._replace(settled=settled)
        for index, arm in enumerate(arms):
            if sample.n[index] and not (settled.different | settled.equivalent)[index]:
                verdicts[arm] = accept(arm, _verdict(index, sample, decision, margin, fewest))
        settled = Settled(*(each & _settled_arms(arms, verdicts) for each in decision.settled))
    return {arm: _over_all_rounds(verdict, log_ratios[arm], fewest) for arm, verdict in verdicts.items()}


def _settled_arms(arms: Sequence[str], verdicts: Mapping[str, Verdict]) -> NDArray:
    import numpy as np

    settled = [arm in verdicts and verdicts[arm].kind != "unresolved" for arm in arms]
    return np.array(settled, dtype=bool)


# ---- the procedure, for arrays whose last axis is the arms of one run --------------------------------------


class Sample(NamedTuple):
    """Mean and standard error of the log ratios of every arm."""

    mean: NDArray
    error: NDArray
    """Standard error of the mean; NaN with fewer than two rounds."""
    n: NDArray

    @classmethod
    def of(cls, values: Sequence[Sequence[float]]) -> Sample:
        """Take the values of every arm; their numbers of rounds may differ."""
        import numpy as np

        return cls(
            np.array([np.mean(v) if len(v) else np.nan for v in values]),
            np.array([np.std(v, ddof=1) / len(v) ** 0.5 if len(v) > 1 else np.nan for v in values]),
            np.array([len(v) for v in values]),
        )

    @classmethod
    def over_rounds(cls, values: NDArray) -> Sample:
        """Take an array (experiments, rounds, arms)."""
        import numpy as np

        mean, n = values.mean(1), values.shape[1]
        error = values.std(1, ddof=1) / n**0.5 if n >= _TWO_ROUNDS else np.full_like(mean, np.nan)
        return cls(mean, error, np.full_like(mean, n, dtype=int))

    @classmethod
    def between(cls, old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> Sample:
        """Take the difference, old minus new, of independent runs.

        Their spreads may differ: B. L. Welch, "The generalization of 'Student's' problem when several
        different population variances are involved", Biometrika 34 (1947). Let a and b be s^2 / n of
        the two runs. The error of the difference is sqrt(a + b). The degrees of freedom are
        (a + b)^2 / (a^2 / (n - 1) + b^2 / (n - 1)). ``n`` is one more than these.
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
    """Arms that need no further round."""

    different: NDArray
    equivalent: NDArray

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Settled:
        """Return the state before the first look."""
        import numpy as np

        return cls(np.zeros(shape, bool), np.zeros(shape, bool))

    @property
    def all(self) -> NDArray:
        """Return whether a run has nothing left to settle."""
        return (self.different | self.equivalent).all(-1)


class Decision(NamedTuple):
    """Decision on every arm at one look."""

    settled: Settled
    p: NDArray
    p_adjusted: NDArray
    alpha: NDArray
    """One minus the level of each arm's interval."""
    half_width: NDArray
    least: NDArray | None = None
    """Lower end of each one-sided interval at 1 - alpha of the look, if these decide."""


def decide(
    sample: Sample, alpha: float, margin: float, before: Settled, *, one_sided: bool = False
) -> Decision:
    """Decide on all arms at one look; ``margin`` is logarithmic.

    With ``one_sided``, an arm is equivalent if a one-sided test at alpha shows that it is not slower by the
    margin. Holm has no part in that, because a gate passes only with all of its arms. Such an
    intersection-union test keeps alpha if each of its tests does: R. L. Berger, "Multiparameter hypothesis
    testing and acceptance sampling", Technometrics 24 (1982). No arm is both equivalent and slower, because
    its estimate is within the margin.

    Holm and the intervals agree:

    - Holm rejects an arm at step k. Its interval has the level of that step, 1 - alpha / (K - k + 1), so it
      excludes 1.
    - All other intervals have the level 1 - alpha / (K - d), with d arms called different. Holm rejects at
      least d arms, so no interval excludes 1 without a rejection.
    - An interval misses to one side with half its error, and K - d arms may still be called equivalent. In
      simulations up to four arms differed by just the margin, and 3 of 100 runs called any equivalent.

    An arm that an earlier look called different stays rejected. Holm's proof allows it: with m equal arms, at
    most K - m right rejections come before the first wrong one.
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
    left = np.maximum(arms - different.sum(-1, keepdims=True), 1)
    own = np.where(different, alpha / divisors[back], alpha / left)
    half_width = _quantile(sample.n, own) * sample.error
    least = sample.mean - _quantile(sample.n, np.array(2 * alpha)) * sample.error if one_sided else None
    within = np.abs(sample.mean) + half_width <= margin if least is None else least >= -margin  # NaN is not
    equivalent = before.equivalent | (within & ~different & ~settled_before)
    adjusted = np.take_along_axis(adjusted, back, -1)
    return Decision(Settled(different, equivalent), p, adjusted, own, half_width, least)


def _p_value(sample: Sample) -> NDArray:
    """Return the two-sided p of the paired t test.

    It is 1 with fewer than two rounds. Rounds without spread have an infinite t: p is 0, or 1 if the mean
    is 0 too. Real launches always spread, because clocks count nanoseconds.
    """
    import numpy as np
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(sample.mean) / sample.error
    t = np.where((sample.mean == 0) | (sample.n < _TWO_ROUNDS), 0.0, t)
    return 2 * stdtr(np.maximum(sample.n - 1, 1), -t)


def _quantile(n: NDArray, alpha: NDArray) -> NDArray:
    """Return the half-width of the interval at 1 - alpha, in standard errors."""
    import numpy as np
    from scipy.special import stdtrit

    # Inverting Student's t takes most of the time, and many experiments share few levels. A complex number is
    # a pair that numpy can sort.
    both = np.asarray(n + 1j * alpha)
    pairs, back = np.unique(both, return_inverse=True)
    return -stdtrit(np.maximum(pairs.real - 1, 1), pairs.imag / 2)[back].reshape(both.shape)


# ---- from the arrays to one verdict ------------------------------------------------------------------------


def _check(log_ratios: Mapping[str, Sequence[float]], alpha: float, margin: float) -> None:
    if not 0 < alpha < 1 or not 0 < margin < math.inf:
        raise ValueError(f"alpha {alpha} must lie between 0 and 1, and margin {margin} above 0")
    for arm, values in log_ratios.items():
        for round_, value in enumerate(values, start=1):
            if not abs(value) < _LARGEST_LOG:  # false for NaN too
                raise ValueError(f"the log ratio of {arm} in round {round_} is {value}")


def _verdict(index: int, sample: Sample, decision: Decision, margin: float, fewest: int) -> Verdict:
    mean, n = float(sample.mean[index]), int(sample.n[index])
    kind: Literal["faster", "slower", "equivalent", "unresolved"] = "unresolved"
    if decision.settled.different[index]:
        kind = "faster" if mean > 0 else "slower"
    elif decision.settled.equivalent[index]:
        kind = "equivalent"
    undrawn = Verdict(
        kind=kind,
        speed_ratio=math.exp(mean),
        low=None,
        high=None,
        level=1 - float(decision.alpha[index]),
        p=float(decision.p[index]),
        p_adjusted=float(decision.p_adjusted[index]),
        n=n,
        settled_after=None if kind == "unresolved" else n,
        margin=margin,
        rounds_to_settle=None,
        least=None if decision.least is None else ratio_of(float(decision.least[index])),
    )
    return _with_interval(undrawn, mean, float(sample.error[index]), n, fewest)


def _over_all_rounds(verdict: Verdict, values: Sequence[float], fewest: int) -> Verdict:
    """Return the verdict with the ratio and the interval of all rounds.

    A ratio that contradicts it makes the arm *unresolved*.
    """
    if verdict.n == len(values):
        return verdict
    sample = Sample.of([values])
    mean, error = float(sample.mean[0]), float(sample.error[0])
    is_one_sided, margin = verdict.least is not None, math.log1p(verdict.margin)
    agrees = {
        "faster": mean > 0,
        "slower": mean < 0,
        "equivalent": mean >= -margin if is_one_sided else abs(mean) <= margin,
        "unresolved": True,
    }
    if not agrees[verdict.kind]:
        verdict = msgspec.structs.replace(verdict, kind="unresolved", settled_after=None)
    return _with_interval(verdict, mean, error, len(values), fewest)


def _with_interval(verdict: Verdict, mean: float, error: float, n: int, fewest: int) -> Verdict:
    """Return the verdict with the ratio and the interval of ``n`` rounds, at its own level."""
    from scipy.special import stdtrit

    alpha = 1 - verdict.level
    half_width = -float(stdtrit(max(n - 1, 1), alpha / 2)) * error
    low, high = ratio_of(mean - half_width), ratio_of(mean + half_width)
    more = None
    if verdict.kind == "unresolved" and n >= _TWO_ROUNDS and verdict.uneven_load is None:
        more = _rounds_to_settle(mean, error, n, alpha, verdict.margin)
    return msgspec.structs.replace(
        verdict,
        speed_ratio=math.exp(mean),
        low=low if high is not None else None,
        high=high if low is not None else None,
        n=n,
        rounds_to_settle=None if more is None else max(fewest - n, more),
    )


def ratio_of(value: float) -> float | None:
    """Return the ratio; None if JSON cannot hold it or its inverse."""
    return math.exp(value) if abs(value) < _LARGEST_LOG else None


def _rounds_to_settle(mean: float, error: float, n: int, alpha: float, margin: float) -> int | None:
    """Return how many more rounds make the half-width small enough."""
    from scipy.special import stdtrit

    log_margin = math.log1p(margin)
    # An effect beyond the margin must exclude 0; an effect within it must fit in.
    enough = abs(mean) if abs(mean) > log_margin else log_margin - abs(mean)
    spread = error * n**0.5

    def settles(rounds: int) -> bool:
        return bool(-stdtrit(rounds - 1, alpha / 2) * spread / rounds**0.5 < enough)

    if not settles(n + _MOST_ROUNDS):
        return None
    few, many = n, n + _MOST_ROUNDS  # bisection: the half-width falls with every round
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if settles(middle) else (middle, many)
    return many - n
