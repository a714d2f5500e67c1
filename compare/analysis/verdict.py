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


class NullRate(msgspec.Struct, frozen=True, kw_only=True):
    """How often experiments in which nothing differs were said to hold a difference."""

    experiments: int
    false_differences: int
    """Experiments in which any arm was called faster or slower, at any look."""
    rate: float
    low: float
    """The rate's 95 % interval (Clopper & Pearson)."""
    high: float
    equivalent: int
    """Experiments in which all arms were called equivalent, which is the truth."""
    mean_rounds: float
    """Rounds until all was settled, or until the last look."""


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
    settled = _Settled.none((len(arms),))
    for look, level in zip(looks, levels(looks, alpha=alpha), strict=True):
        if not level:  # the plan has grown, and what may be spent by now is spent
            continue
        sample = _Sample.of([log_ratios[arm][: look.rounds] for arm in arms])
        decision = _decide(sample, level, math.log1p(margin), settled)
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


def describe(verdict: Verdict) -> str:
    """Say a verdict in a few words.

    *x % slower* means that a step takes x % longer, as *x % faster* means that the baseline's does: so the
    same difference has the same figure, whichever of the two is called the baseline.
    """
    ratio, low, high = verdict.speed_ratio, verdict.low, verdict.high
    if verdict.kind == "equivalent":
        return f"equivalent within {verdict.margin * 100:g} %"
    if low is None or high is None:
        reason = "one round has no spread" if verdict.n == 1 else _more_rounds(verdict.rounds_to_settle)
        return f"unresolved: {reason}"
    if verdict.kind == "unresolved":
        return f"unresolved: {_half_width(low, high)}, {_more_rounds(verdict.rounds_to_settle)}"
    if verdict.kind == "slower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    if ratio >= 2:  # noqa: PLR2004 -- "212 % faster" makes one stop and think, "3.1×" does not
        return f"{ratio:.1f}× {verdict.kind} [{low:.1f}, {high:.1f}]"
    return f"{_percent(ratio)} % {verdict.kind} [{_percent(low)}, {_percent(high)}]"


def binomial_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Bound a rate from counts: Clopper & Pearson, Biometrika 26 (1934); never too narrow.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    from scipy.special import betaincinv

    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials} is no rate")
    tail = (1 - level) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return low, high


def simulate_null(
    recorded: Sequence[Sequence[float]],
    looks: Sequence[Look],
    *,
    arms: int = 1,
    experiments: int = 10_000,
    seed: int = 0,
    alpha: float = ALPHA,
    margin: float = MARGIN,
) -> NullRate:
    """Compare one arm with itself, many times over, on launches that were really recorded.

    Each experiment is a stretch of consecutive rounds from a random place of the record (which goes on at its
    beginning where it ends), so that drift and noisy spells stay what they were, and within each round labels
    are dealt anew, as the shuffled order of a run deals them. Nothing is assumed of how launches are
    distributed. The answer speaks of the machine that was recorded: its interval holds for the number of
    experiments, not for another record.

    Args:
        recorded: for each round, in order, step seconds of its launches in the order of time, all of one and
            the same arm; at least ``arms + 1`` of them.
        looks: as for `judge`; a single one is an experiment of fixed length.
        arms: how many are compared with the baseline.
        experiments: how many to try.
        seed: the same seed gives the same answer.
        alpha: see `judge`.
        margin: see `judge`.

    Raises:
        ValueError: the record has too few rounds or launches, or step times that are not above 0.
    """
    log_ratios = _null_log_ratios(recorded, looks, arms, experiments, seed)
    settled, rounds = _follow(log_ratios, looks, alpha, margin)
    false = int(settled.different.any(-1).sum())
    low, high = binomial_interval(false, experiments)
    return NullRate(
        experiments=experiments,
        false_differences=false,
        rate=false / experiments,
        low=low,
        high=high,
        equivalent=int(settled.equivalent.all(-1).sum()),
        mean_rounds=float(rounds.mean()),
    )


# ---- the procedure, for arrays whose last axis is the arms of one run --------------------------------------


class _Sample(NamedTuple):
    mean: NDArray
    error: NDArray
    """Standard error of the mean; NaN with less than two rounds."""
    n: NDArray

    @classmethod
    def of(cls, values: Sequence[Sequence[float]]) -> _Sample:
        """From the values of every arm, which may have different numbers of rounds."""
        import numpy as np

        return cls(
            np.array([np.mean(v) if len(v) else np.nan for v in values]),
            np.array([np.std(v, ddof=1) / len(v) ** 0.5 if len(v) > 1 else np.nan for v in values]),
            np.array([len(v) for v in values]),
        )

    @classmethod
    def over_rounds(cls, values: NDArray) -> _Sample:
        """From an array (experiments, rounds, arms)."""
        import numpy as np

        mean, n = values.mean(1), values.shape[1]
        error = values.std(1, ddof=1) / n**0.5 if n >= _TWO_ROUNDS else np.full_like(mean, np.nan)
        return cls(mean, error, np.full_like(mean, n, dtype=int))


class _Settled(NamedTuple):
    """Which arms need no further round."""

    different: NDArray
    equivalent: NDArray

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> _Settled:
        """As it is before the first look."""
        import numpy as np

        return cls(np.zeros(shape, bool), np.zeros(shape, bool))

    @property
    def all(self) -> NDArray:
        """Whether nothing is left to settle in a run."""
        return (self.different | self.equivalent).all(-1)


class _Decision(NamedTuple):
    settled: _Settled
    p: NDArray
    p_adjusted: NDArray
    alpha: NDArray
    """One minus the level of each arm's interval."""
    half_width: NDArray


def _decide(sample: _Sample, alpha: float, margin: float, before: _Settled) -> _Decision:
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
    return _Decision(_Settled(different, equivalent), p, adjusted, own, half_width)


def _follow(
    log_ratios: NDArray, looks: Sequence[Look], alpha: float, margin: float
) -> tuple[_Settled, NDArray]:
    """Carry out many experiments (experiments, rounds, arms): what each settled, and in how many rounds."""
    import numpy as np

    experiments, _, arms = log_ratios.shape
    settled = _Settled.none((experiments, arms))
    rounds = np.full(experiments, looks[-1].rounds)
    for look, level in zip(looks, levels(looks, alpha=alpha), strict=True):
        if level:
            running = ~settled.all
            sample = _Sample.over_rounds(log_ratios[:, : look.rounds])
            settled = _decide(sample, level, math.log1p(margin), settled).settled
            rounds[running & settled.all] = look.rounds
    return settled, rounds


def _p_value(sample: _Sample) -> NDArray:
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


def _null_log_ratios(
    recorded: Sequence[Sequence[float]], looks: Sequence[Look], arms: int, experiments: int, seed: int
) -> NDArray:
    """Deal labels to recorded launches: an array (experiments, rounds, arms)."""
    import numpy as np

    rounds, width = looks[-1].rounds, min((len(launches) for launches in recorded), default=0)
    if len(recorded) < rounds or width <= arms or arms < 1:
        raise ValueError(
            f"{len(recorded)} rounds of at least {width} launches are too few for {rounds} rounds "
            f"of {arms} arms and a baseline"
        )
    # Which launches are left out, where a round has more than others, must not depend on their times.
    seconds = np.array([launches[:width] for launches in recorded], float)
    if not ((seconds > 0) & (seconds < np.inf)).all():
        raise ValueError("step times must be above 0, and finite")
    random = np.random.default_rng(seed)
    start = random.integers(len(recorded), size=(experiments, 1))
    drawn = np.log(seconds)[(start + np.arange(rounds)) % len(recorded)]
    # As a run deals them: anew for every two rounds, of which the second is the first in reverse.
    places = np.broadcast_to(np.arange(width), (experiments, (rounds + 1) // 2, width))
    places = np.repeat(random.permuted(places, axis=-1), 2, axis=1)[:, :rounds]
    places[:, 1::2] = width - 1 - places[:, 1::2]
    dealt = np.take_along_axis(drawn, places, axis=-1)
    return dealt[..., :1] - dealt[..., 1 : arms + 1]


# ---- from the procedure to words ---------------------------------------------------------------------------


def _check(log_ratios: Mapping[str, Sequence[float]], alpha: float, margin: float) -> None:
    if not 0 < alpha < 1 or not 0 < margin < math.inf:
        raise ValueError(f"alpha {alpha} must lie between 0 and 1, and margin {margin} above 0")
    for arm, values in log_ratios.items():
        for round_, value in enumerate(values, start=1):
            if not abs(value) < _LARGEST_LOG:  # nor is NaN
                raise ValueError(f"the log ratio of {arm} in round {round_} is {value}")


def _verdict(index: int, sample: _Sample, decision: _Decision, margin: float, fewest: int) -> Verdict:
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


def _percent(ratio: float) -> str:
    percent = (ratio - 1) * 100
    return f"{percent:.1f}" if abs(percent) < 10 else f"{percent:.0f}"  # noqa: PLR2004 -- two digits are enough


def _half_width(low: float, high: float) -> str:
    factor = math.sqrt(high / low)
    return f"±{_percent(factor)} %" if factor < 2 else f"a factor of {factor:.3g} either way"  # noqa: PLR2004


def _more_rounds(rounds: int | None) -> str:
    if rounds is None:
        return "and more rounds would hardly settle it"
    return f"about {rounds} more round{'s' if rounds > 1 else ''} would settle it"
