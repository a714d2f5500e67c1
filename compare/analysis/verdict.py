"""Judge whether an arm is faster than another, from paired rounds.

One procedure serves all designs: a fixed number of rounds is a single look.

* **One arm.** A paired t test on ln(the baseline's step time / the arm's), one value per round. Swapping the
  two changes only the sign. Noise that grows with step time is even on that scale.
* **Several arms.** Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6
  (1979). The k-th smallest of K p-values must be at most alpha / (K - k + 1), and all before it must pass.
  That bounds the false differences of a run. It does not bound the misses of its intervals: each one has the
  level of its own arm. ``docs/method.md`` has figures.
* **Several looks.** Alpha is shared out among the looks: see ``looks.py``.
* **All rounds.** A look decides what kind of verdict an arm has. Ratio and interval are those of all rounds,
  so that they agree with the step times of a table. If the ratio no longer lies on the verdict's side, the
  arm becomes *unresolved*. That only takes verdicts away, so the level holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from compare.analysis.decision import TWO_ROUNDS, Decision, Sample, Settled, decide
from compare.analysis.looks import ALPHA, Look, levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARGIN = 0.03
"""Largest relative difference that does not matter."""
_MOST_ROUNDS = 10_000
"""Most further rounds that are considered; an effect that needs more lies on the margin."""
_LARGEST_LOG = 700.0
"""Largest absolute log ratio; the largest double is e to the 709."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on one arm against the baseline."""

    kind: Literal["faster", "slower", "equivalent", "unresolved"]
    """Whether there is a difference, by the look that settled the arm.

    - *faster* or *slower*: the interval excludes 1, and the estimate exceeds the margin
    - *equivalent*: the whole interval lies within the margin; in a gate, ``least`` does
    - *unresolved*: no look settled the arm, the ratio of all rounds lies on the other side, or uneven load
      may explain the difference
    """
    speed_ratio: float
    """Baseline's step time over the arm's, geometric mean of all rounds; above 1 is faster."""
    low: float | None
    """Lower end of the interval over all rounds; None for a single round."""
    high: float | None
    """Upper end of the same interval."""
    level: float
    """Confidence level of this one interval, after Holm's correction and the shares of the looks.

    It is the level at the look that settled the arm, or at the last look.
    """
    p: float
    """Two-sided p of no difference, for this arm alone, at the look that settled it or at the last look."""
    p_adjusted: float
    """The same after Holm's correction over all arms of that look."""
    n: int
    """Number of paired rounds."""
    settled_after: int | None = None
    """Rounds after which a look settled the arm; None while it is unresolved."""
    margin: float
    """Largest relative difference that does not matter, as a fraction."""
    rounds_to_settle: int | None
    """About how many more rounds of the same spread settle an *unresolved* arm.

    None if the arm is settled, has one round or uneven load, or needs more than 10,000 rounds.
    """
    uneven_load: tuple[float, float] | None = None
    """Other load beside the arm and beside the baseline, in cores; None unless it may explain the verdict.

    The verdict is *unresolved* if the load may explain it at the look that would settle the arm. If only the
    load of all rounds may explain it, its kind stays.
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

    An arm that a look settles keeps the kind of its verdict while the ratio of all rounds agrees with it. An
    arm whose ratio lies on the other side at a later look is judged anew from that look on.

    Args:
        log_ratios: ln(baseline's step time / arm's) of each round, by arm, without the baseline. An arm
            without rounds gets no verdict, but counts for Holm's correction.
        looks: all looks so far, in order; the default is a single one at all rounds.
        alpha: probability of any false difference, over all arms and looks.
        margin: largest relative difference that does not matter. It is symmetric in the logarithm: 0.03
            allows a speed ratio between 1 / 1.03 and 1.03.
        fewest: number of rounds below which nothing is settled, see `FIRST_LOOK`.
        one_sided: whether *equivalent* means not slower by the margin, as in `decide`.
        accept: takes an arm and its verdict at a look. It returns that verdict, or an unresolved one, and
            then the next look judges the arm again.

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
        settled = Settled(*(each & _agreeing(arms, verdicts, sample) for each in settled))
        decision = decide(sample, level, math.log1p(margin), settled, one_sided=one_sided)
        if look.rounds < fewest:
            decision = decision._replace(settled=settled)
        for index, arm in enumerate(arms):
            if sample.n[index] and not (settled.different | settled.equivalent)[index]:
                verdicts[arm] = accept(arm, _verdict(index, sample, decision, margin, fewest))
        settled = Settled(*(each & _settled_arms(arms, verdicts) for each in decision.settled))
    return {
        arm: _with_load(_over_all_rounds(verdict, log_ratios[arm], fewest), partial(accept, arm))
        for arm, verdict in verdicts.items()
    }


def _agreeing(arms: Sequence[str], verdicts: Mapping[str, Verdict], sample: Sample) -> NDArray:
    """Return for each arm whether its mean lies on the side of its verdict; False without a verdict."""
    import numpy as np

    pairs = zip(arms, sample.mean, strict=True)
    agree = [arm in verdicts and _agrees(verdicts[arm], float(mean)) for arm, mean in pairs]
    return np.array(agree, dtype=bool)


def _with_load(verdict: Verdict, accept: Callable[[Verdict], Verdict]) -> Verdict:
    """Return a verdict with the uneven load that may explain it over all rounds, and with its kind kept."""
    over_all = accept(verdict)
    return msgspec.structs.replace(verdict, uneven_load=over_all.uneven_load or verdict.uneven_load)


def _settled_arms(arms: Sequence[str], verdicts: Mapping[str, Verdict]) -> NDArray:
    import numpy as np

    settled = [arm in verdicts and verdicts[arm].kind != "unresolved" for arm in arms]
    return np.array(settled, dtype=bool)


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

    If that ratio contradicts the verdict, the arm becomes *unresolved*.
    """
    if verdict.n == len(values):
        return verdict
    sample = Sample.of([values])
    mean, error = float(sample.mean[0]), float(sample.error[0])
    if not _agrees(verdict, mean):
        verdict = msgspec.structs.replace(verdict, kind="unresolved", settled_after=None)
    return _with_interval(verdict, mean, error, len(values), fewest)


def _agrees(verdict: Verdict, mean: float) -> bool:
    """Return whether a mean log ratio agrees with the kind of a verdict; always if it is *unresolved*."""
    is_one_sided, margin = verdict.least is not None, math.log1p(verdict.margin)
    return {
        "faster": mean > 0,
        "slower": mean < 0,
        "equivalent": mean >= -margin if is_one_sided else abs(mean) <= margin,
        "unresolved": True,
    }[verdict.kind]


def _with_interval(verdict: Verdict, mean: float, error: float, n: int, fewest: int) -> Verdict:
    """Return the verdict with the ratio and the interval of ``n`` rounds, at the verdict's level."""
    from scipy.special import stdtrit

    alpha = 1 - verdict.level
    half_width = -float(stdtrit(max(n - 1, 1), alpha / 2)) * error
    low, high = ratio_of(mean - half_width), ratio_of(mean + half_width)
    more = None
    if verdict.kind == "unresolved" and n >= TWO_ROUNDS and verdict.uneven_load is None:
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
    """Return the ratio with the logarithm ``value``; None if JSON cannot hold the ratio or its inverse."""
    return math.exp(value) if abs(value) < _LARGEST_LOG else None


def _rounds_to_settle(mean: float, error: float, n: int, alpha: float, margin: float) -> int | None:
    """Return how many more rounds make the half-width small enough to settle; None beyond `_MOST_ROUNDS`."""
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
