"""The test of all arms of a run at one look, for arrays whose last axis is the arms.

``docs/method.md`` has the design: paired t tests on log ratios, with Holm's correction over the arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

TWO_ROUNDS = 2
"""Fewer rounds have no spread."""


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
        error = values.std(1, ddof=1) / n**0.5 if n >= TWO_ROUNDS else np.full_like(mean, np.nan)
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
    margin. No correction is needed there, because a gate passes only if all of its arms do. Such an
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
    t = np.where((sample.mean == 0) | (sample.n < TWO_ROUNDS), 0.0, t)
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
