"""Rate of false differences, resampled from recorded launches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from compare.analysis.verdict import ALPHA, MARGIN, Look, Sample, Settled, decide, levels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


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


def _follow(
    log_ratios: NDArray, looks: Sequence[Look], alpha: float, margin: float
) -> tuple[Settled, NDArray]:
    """Carry out many experiments (experiments, rounds, arms): what each settled, and in how many rounds."""
    import numpy as np

    experiments, _, arms = log_ratios.shape
    settled = Settled.none((experiments, arms))
    rounds = np.full(experiments, looks[-1].rounds)
    for look, level in zip(looks, levels(looks, alpha=alpha), strict=True):
        if level:
            running = ~settled.all
            sample = Sample.over_rounds(log_ratios[:, : look.rounds])
            settled = decide(sample, level, math.log1p(margin), settled).settled
            rounds[running & settled.all] = look.rounds
    return settled, rounds


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
