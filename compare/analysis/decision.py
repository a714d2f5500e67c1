"""Test all arms of a run at one look, with arrays whose last axis is the arms.

The tests are paired t tests on log ratios, with Holm's correction over the arms. ``docs/method.md`` explains
the design.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

TWO_ROUNDS = 2
"""Smallest number of rounds with a spread."""


class Sample(NamedTuple):
    """Mean and standard error of the log ratios of every arm; the last axis is the arms."""

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
    def over_rounds(cls, values: NDArray) -> Sample:
        """Summarise log ratios of shape (experiments, rounds, arms) over the rounds."""
        import numpy as np

        mean, n = values.mean(1), values.shape[1]
        error = values.std(1, ddof=1) / n**0.5 if n >= TWO_ROUNDS else np.full_like(mean, np.nan)
        return cls(mean, error, np.full_like(mean, n, dtype=int))

    @classmethod
    def between(cls, old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> Sample:
        """Return the difference, old minus new, of the means of two independent runs.

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
    """The arms that looks so far have settled, as boolean arrays."""

    different: NDArray
    """Whether an arm is called faster or slower."""
    equivalent: NDArray
    """Whether an arm is called equivalent."""

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Settled:
        """Return the state before the first look, in which no arm is settled."""
        import numpy as np

        return cls(np.zeros(shape, bool), np.zeros(shape, bool))

    @property
    def all(self) -> NDArray:
        """Return whether every arm is settled, as one boolean for each run."""
        return (self.different | self.equivalent).all(-1)


class Decision(NamedTuple):
    """The decision on every arm at one look."""

    settled: Settled
    """The arms that this look or an earlier one settled."""
    p: NDArray
    """Two-sided p of no difference; 0 or 1 for arms that an earlier look called different or equivalent."""
    p_adjusted: NDArray
    """The same after Holm's correction."""
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

    Holm and the intervals agree:

    - The interval of an arm that Holm rejects at step k of K has the level of that step,
      1 - alpha / (K - k + 1). So it excludes 1.
    - All other intervals have the level 1 - alpha / (K - d), with d arms called different. Holm rejects at
      least d arms, so no interval excludes 1 without a rejection.
    - An interval misses to one side with half its error, and K - d arms may still be called equivalent. In
      simulations of up to four arms that differed by just the margin, 3 of 100 runs called one equivalent.

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
    left = np.maximum(arms - different.sum(-1, keepdims=True), 1)
    own = np.where(different, alpha / divisors[back], alpha / left)
    half_width = _quantile(sample.n, own) * sample.error
    least = sample.mean - _quantile(sample.n, np.array(2 * alpha)) * sample.error if one_sided else None
    within = np.abs(sample.mean) + half_width <= margin if least is None else least >= -margin  # NaN is not
    equivalent = before.equivalent | (within & ~different & ~settled_before)
    adjusted = np.take_along_axis(adjusted, back, -1)
    return Decision(Settled(different, equivalent), p, adjusted, own, half_width, least)


def _p_value(sample: Sample) -> NDArray:
    """Return the two-sided p of the paired t test of every arm.

    With fewer than two rounds p is 1. Rounds without spread have an infinite t, so p is 0, or 1 if the mean
    is 0 too. Real launches always spread, because clocks count nanoseconds.
    """
    import numpy as np
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(sample.mean) / sample.error
    t = np.where((sample.mean == 0) | (sample.n < TWO_ROUNDS), 0.0, t)
    return 2 * stdtr(np.maximum(sample.n - 1, 1), -t)


def _quantile(n: NDArray, alpha: NDArray) -> NDArray:
    """Return the half-width of the two-sided interval at level 1 - alpha, in standard errors."""
    import numpy as np
    from scipy.special import stdtrit

    # Inverting Student's t takes most of the time, and many experiments share few levels, so each pair of n
    # and alpha is inverted once. A complex number is a pair that numpy can sort.
    both = np.asarray(n + 1j * alpha)
    pairs, back = np.unique(both, return_inverse=True)
    return -stdtrit(np.maximum(pairs.real - 1, 1), pairs.imag / 2)[back].reshape(both.shape)
