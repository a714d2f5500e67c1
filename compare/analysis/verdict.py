"""Is one arm really faster than another? Verdicts from paired rounds, looked at once or after every round.

Pure, and one procedure for everything: a fixed number of rounds is a single look, and `simulate_null` tries
the very decisions that `judge` takes.

* **One arm.** Paired t on the logarithms of the baseline's step time over the arm's, one value a round. On
  that scale swapping the two only changes the sign, and noise that grows with step time is even.
* **Several arms.** Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6
  (1979): the k-th smallest of K p-values is held against alpha / (K - k + 1) if all before it passed. That
  bounds the false differences of a run, not the misses of its intervals: each is at the level at which its
  own arm was judged, and of three arms that clearly differ one at least is missed in 6 to 9 of 100 runs.
* **Several looks.** The spending function of Lan & DeMets, "Discrete sequential boundaries for clinical
  trials", Biometrika 70 (1983), in its Pocock form, ln(1 + (e - 1) t), over the planned rounds. What a look
  may spend *is* its level: Bonferroni over looks. Boundaries that count on how looks hang together end a run
  3 to 20 % earlier, but the usual ones presume a z statistic, and with few rounds there is a t of few degrees
  of freedom. A sum of levels holds for any dependence, and for a plan that grows or shrinks on the way, as
  long as what changes the plan is time and never the figures.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

MARGIN = 0.03
"""The relative effect below which nobody cares."""
ALPHA = 0.05
"""How often any arm of a run may wrongly be called different."""
FIRST_LOOK = 5
"""Rounds before the first of several looks. Where launches are either quick or slow, a few rounds may all
fall the same way, with a spread of next to nothing. With four arms, both as frequent, and first looks at 3, 4
and 5 of 12 rounds, 10, 3 and 1 of 100 runs named a difference that was none."""
_MOST_ROUNDS = 10_000
"""To need more is to sit on the margin, where no number of rounds settles anything."""
_TWO_ROUNDS = 2
"""One round has no spread."""
_LARGEST_LOG = 700.0
"""The largest double is e to the 709."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the rounds say of one arm against the baseline."""

    kind: Literal["faster", "slower", "equivalent", "unresolved"]
    """*faster* or *slower*: the interval excludes 1, and the estimate exceeds the margin. *equivalent*: the
    whole interval lies within the margin. Anything else is *unresolved*."""
    speed_ratio: float
    """The baseline's step time over the arm's, geometric mean over rounds: above 1 is faster."""
    low: float | None
    """The ends of its interval; None where nothing can be told, as from a single round."""
    high: float | None
    level: float
    """Confidence level of that interval alone, after Holm and after what this look may spend."""
    p: float
    """Two-sided, of no difference at all; for this arm and this look alone."""
    p_adjusted: float
    """The same after Holm: for all arms of this look together."""
    n: int
    """Paired rounds behind it."""
    margin: float
    """The margin it was judged by, as a fraction."""
    rounds_to_settle: int | None
    """For *unresolved*: about how many more rounds of the same spread would settle it at this level. None
    where that cannot be told (one round), or where more than 10,000 would be needed."""


class Look(msgspec.Struct, frozen=True):
    """One time that verdicts were asked for.

    A run that ends before its plan, for want of time, may look once more with ``planned`` equal to
    ``rounds``: that spends what is left.
    """

    rounds: int
    """Finished until then."""
    planned: int
    """Rounds that the run was then expected to have in the end: told from the clock, not from the figures."""


def judge(
    log_ratios: Mapping[str, Sequence[float]],
    looks: Sequence[Look] | None = None,
    *,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    fewest: int = 2,
) -> dict[str, Verdict]:
    """Judge every arm against the baseline.

    An arm that is settled at a look keeps that verdict, and needs no more rounds.

    Args:
        log_ratios: for each arm but the baseline, one value a round: log(baseline's step time / arm's). An
            arm without any round has no verdict, but counts as one that is compared.
        looks: all looks so far, in order; without them, a single one at all rounds.
        alpha: probability of calling any arm different that does not differ, over all arms and looks.
        margin: relative difference that does not matter. It is symmetric in the logarithm: with 0.03 a speed
            ratio between 1 / 1.03 and 1.03 is within it.
        fewest: rounds below which nothing is settled, see `FIRST_LOOK`.

    Raises:
        ValueError: a value is not finite (or no ratio that a double can hold), or a setting is out of range.
    """
    _check(log_ratios, alpha, margin)
    arms = list(log_ratios)
    rounds = max([1, *(len(values) for values in log_ratios.values())])
    looks = looks or [Look(rounds, rounds)]
    verdicts: dict[str, Verdict] = {}
    settled = Settled.none((len(arms),))
    for look, level in zip(looks, levels(looks, alpha=alpha), strict=True):
        if not level:  # the plan has grown, and what may be spent by now is spent
            continue
        sample = Sample.of([log_ratios[arm][: look.rounds] for arm in arms])
        decision = decide(sample, level, math.log1p(margin), settled)
        if look.rounds < fewest:
            decision = decision._replace(settled=settled)
        for index, arm in enumerate(arms):
            if sample.n[index] and not (settled.different | settled.equivalent)[index]:
                verdicts[arm] = _verdict(index, sample, decision, margin, fewest)
        settled = decision.settled
    return verdicts


def levels(looks: Sequence[Look], *, alpha: float = ALPHA) -> list[float]:
    """Share alpha out among looks; the sum is alpha when the last has all the rounds that were planned.

    Raises:
        ValueError: a look before the first round, or of fewer rounds than the one before.
    """
    shares, spent, rounds = [], 0.0, 1
    for look in looks:
        if look.rounds < rounds or look.planned < 1:
            raise ValueError(f"{look} cannot follow a look at {rounds} rounds")
        rounds = look.rounds
        allowed = math.log1p((math.e - 1) * min(1.0, look.rounds / look.planned))
        shares.append(alpha * max(0.0, allowed - spent))
        spent = max(spent, allowed)
    return shares


# ---- the procedure, for arrays whose last axis is the arms of one run --------------------------------------


class Sample(NamedTuple):
    """Mean and standard error of the log ratios of every arm."""

    mean: NDArray
    error: NDArray
    """Standard error of the mean; NaN with less than two rounds."""
    n: NDArray

    @classmethod
    def of(cls, values: Sequence[Sequence[float]]) -> Sample:
        """From the values of every arm, which may have different numbers of rounds."""
        import numpy as np

        return cls(
            np.array([np.mean(v) if len(v) else np.nan for v in values]),
            np.array([np.std(v, ddof=1) / len(v) ** 0.5 if len(v) > 1 else np.nan for v in values]),
            np.array([len(v) for v in values]),
        )

    @classmethod
    def over_rounds(cls, values: NDArray) -> Sample:
        """From an array (experiments, rounds, arms)."""
        import numpy as np

        mean, n = values.mean(1), values.shape[1]
        error = values.std(1, ddof=1) / n**0.5 if n >= _TWO_ROUNDS else np.full_like(mean, np.nan)
        return cls(mean, error, np.full_like(mean, n, dtype=int))


class Settled(NamedTuple):
    """Which arms need no further round."""

    different: NDArray
    equivalent: NDArray

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Settled:
        """As it is before the first look."""
        import numpy as np

        return cls(np.zeros(shape, bool), np.zeros(shape, bool))

    @property
    def all(self) -> NDArray:
        """Whether nothing is left to settle in a run."""
        return (self.different | self.equivalent).all(-1)


class Decision(NamedTuple):
    """What one look decides on every arm."""

    settled: Settled
    p: NDArray
    p_adjusted: NDArray
    alpha: NDArray
    """One minus the level of each arm's interval."""
    half_width: NDArray


def decide(sample: Sample, alpha: float, margin: float, before: Settled) -> Decision:
    """Decide on all arms at one look; ``margin`` is logarithmic.

    How Holm and the intervals agree: an arm that Holm rejects at step k has an interval at the level of that
    step, 1 - alpha / (K - k + 1), so it excludes 1. Every other has one at 1 - alpha / (K - d), d being the
    number of arms called different; d is never more than Holm rejected, so it cannot exclude 1 where Holm did
    not reject. An interval misses to one side only with half its error, and only K - d arms are left to be
    called equivalent: by simulation, with up to four arms that differ by just the margin, 3 of 100 runs call
    any of them equivalent.

    An arm that was called different at an earlier look goes on counting as rejected. Holm's proof allows it:
    the first wrong rejection has at most K - m right ones before it, m being the arms that do not differ.
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
    within = np.abs(sample.mean) + half_width <= margin  # never where the error is NaN
    equivalent = before.equivalent | (within & ~different & ~settled_before)
    adjusted = np.take_along_axis(adjusted, back, -1)
    return Decision(Settled(different, equivalent), p, adjusted, own, half_width)


def _p_value(sample: Sample) -> NDArray:
    """Two-sided p of the paired t test; 1 with less than two rounds.

    Rounds without any spread have an infinite t, or none where the mean is 0 too: taken at their word, they
    differ for certain, or not at all. Clocks count nanoseconds, so no real launches are as equal as that.
    """
    import numpy as np
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(sample.mean) / sample.error
    t = np.where((sample.mean == 0) | (sample.n < _TWO_ROUNDS), 0.0, t)
    return 2 * stdtr(np.maximum(sample.n - 1, 1), -t)


def _quantile(n: NDArray, alpha: NDArray) -> NDArray:
    """Half-width of a two-sided interval at 1 - alpha, in standard errors of the mean of n rounds."""
    import numpy as np
    from scipy.special import stdtrit

    # Few levels serve many experiments, and inverting Student's t is what takes the time. A complex number
    # is a pair that numpy sorts.
    both = np.asarray(n + 1j * alpha)
    pairs, back = np.unique(both, return_inverse=True)
    return -stdtrit(np.maximum(pairs.real - 1, 1), pairs.imag / 2)[back].reshape(both.shape)


# ---- from the procedure to words ---------------------------------------------------------------------------


def _check(log_ratios: Mapping[str, Sequence[float]], alpha: float, margin: float) -> None:
    if not 0 < alpha < 1 or not 0 < margin < math.inf:
        raise ValueError(f"alpha {alpha} must lie between 0 and 1, and margin {margin} above 0")
    for arm, values in log_ratios.items():
        for round_, value in enumerate(values, start=1):
            if not abs(value) < _LARGEST_LOG:  # nor is NaN
                raise ValueError(f"the log ratio of {arm} in round {round_} is {value}")


def _verdict(index: int, sample: Sample, decision: Decision, margin: float, fewest: int) -> Verdict:
    mean, n = float(sample.mean[index]), int(sample.n[index])
    half_width, alpha = float(decision.half_width[index]), float(decision.alpha[index])
    kind: Literal["faster", "slower", "equivalent", "unresolved"] = "unresolved"
    if decision.settled.different[index]:
        kind = "faster" if mean > 0 else "slower"
    elif decision.settled.equivalent[index]:
        kind = "equivalent"
    low, high = _exp(mean - half_width), _exp(mean + half_width)
    unresolved = kind == "unresolved" and n >= _TWO_ROUNDS
    return Verdict(
        kind=kind,
        speed_ratio=math.exp(mean),
        low=low if high is not None else None,
        high=high if low is not None else None,
        level=1 - alpha,
        p=float(decision.p[index]),
        p_adjusted=float(decision.p_adjusted[index]),
        n=n,
        margin=margin,
        rounds_to_settle=_at_least(
            fewest - n, _rounds_to_settle(mean, float(sample.error[index]), n, alpha, margin)
        )
        if unresolved
        else None,
    )


def _exp(value: float) -> float | None:
    """Leave the logarithm; None for what JSON cannot hold, or a ratio of 0, whose inverse there is not."""
    return math.exp(value) if abs(value) < _LARGEST_LOG else None


def _at_least(least: int, rounds: int | None) -> int | None:
    return None if rounds is None else max(least, rounds)


def _rounds_to_settle(mean: float, error: float, n: int, alpha: float, margin: float) -> int | None:
    """Count the rounds until the interval's half-width would settle it, were mean and spread to stay."""
    from scipy.special import stdtrit

    log_margin = math.log1p(margin)
    # Beyond the margin the interval has to leave 0 behind; within, it has to fit in.
    enough = abs(mean) if abs(mean) > log_margin else log_margin - abs(mean)
    spread = error * n**0.5

    def settles(rounds: int) -> bool:
        return bool(-stdtrit(rounds - 1, alpha / 2) * spread / rounds**0.5 < enough)

    if not settles(n + _MOST_ROUNDS):
        return None
    few, many = n, n + _MOST_ROUNDS  # the half-width falls with every round, so halving finds the first
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if settles(middle) else (middle, many)
    return many - n
