"""Simulate A/A tests and gates on recorded launches: how many differences are false?

The experiments use the same decisions as `judge`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from compare.analysis.budget import ALPHA, Look, is_close_to_the_end, levels, look_rounds
from compare.analysis.figures import binomial_interval
from compare.analysis.verdict import MARGIN, Sample, Settled, decide

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SimulatedRate(msgspec.Struct, frozen=True, kw_only=True):
    """Rate of false differences in experiments in which nothing differs."""

    experiments: int
    false_differences: int
    """Experiments with any arm called faster or slower, at any look."""
    rate: float
    low: float
    """Lower end of the rate's 95 % interval (Clopper & Pearson)."""
    high: float
    equivalent: int
    """Experiments in which all arms were called equivalent, which is the truth."""
    mean_rounds: float
    """Rounds until everything was settled, or until the last look."""


def planned_looks(planned: int) -> list[Look]:
    """Return the looks of a run that ends after ``planned`` rounds, if that was planned from its start."""
    found = [Look(rounds, planned) for rounds in look_rounds(planned - 1)]
    return [*(look for look in found if not is_close_to_the_end(look)), Look(planned, planned)]


def simulate_aa(
    recorded: Sequence[Sequence[float]],
    looks: Sequence[Look],
    *,
    arms: int = 1,
    experiments: int = 10_000,
    seed: int = 0,
    alpha: float = ALPHA,
) -> SimulatedRate:
    """Compare one arm with itself many times, on recorded launches.

    Each experiment takes consecutive rounds from a random place of the record, which continues at its start.
    So drift and noisy periods stay in place. Each round's labels are shuffled as in a run. There is no
    assumption about the distribution of launches. The interval covers the number of experiments, not another
    record of the machine.

    Args:
        recorded: step seconds of each round's launches, all of one arm, in the order of time. A round needs
            ``arms + 1`` launches or more.
        looks: as for `judge`; a single one is an experiment of fixed length.
        arms: number of arms to compare with the baseline.
        experiments: number of experiments.
        seed: the same seed gives the same result.
        alpha: see `judge`.

    Raises:
        ValueError: the record has too few rounds or launches, or a step time that is not above 0.
    """
    log_ratios = _draw_log_ratios(recorded, looks, arms, experiments, seed)
    settled, rounds = follow(log_ratios, looks, alpha, MARGIN)
    false = int(settled.different.any(-1).sum())
    low, high = binomial_interval(false, experiments)
    return SimulatedRate(
        experiments=experiments,
        false_differences=false,
        rate=false / experiments,
        low=low,
        high=high,
        equivalent=int(settled.equivalent.all(-1).sum()),
        mean_rounds=float(rounds.mean()),
    )


class SimulatedGates(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of gates whose arms have known slowdowns."""

    experiments: int
    slower: int
    """Gates that called an arm slower: false alarms without a slowdown."""
    passed: int
    """Gates that passed every arm: wrong if one is slower by the limit."""
    mean_rounds: float
    """Rounds until the gate had its outcome, or until the last look."""


def simulate_gates(
    recorded: Sequence[Sequence[float]],
    looks: Sequence[Look],
    *,
    limit: float,
    slowdowns: Sequence[float] = (0.0,),
    experiments: int = 10_000,
    seed: int = 0,
) -> SimulatedGates:
    """Compare arms with themselves as `ringside gate` does, on recorded launches.

    Every arm has its own draw from the record, as every arm of a gate has a twin of its own.

    Args:
        recorded: as for `simulate_aa`.
        looks: likewise.
        limit: largest slowdown that passes, as a fraction.
        slowdowns: for each arm, the fraction by which every new step takes longer.
        experiments: number of gates.
        seed: the same seed gives the same result.

    Raises:
        ValueError: as `simulate_aa`.
    """
    import numpy as np

    drawn = [
        _draw_log_ratios(recorded, looks, 1, experiments, seed + arm) - math.log1p(slowdown)
        for arm, slowdown in enumerate(slowdowns)
    ]
    log_ratios = np.concatenate(drawn, axis=-1)
    settled, slower = Settled.none((experiments, len(slowdowns))), np.zeros(experiments, bool)
    running, rounds = np.ones(experiments, bool), np.full(experiments, looks[-1].rounds)
    for look, level in zip(looks, levels(looks), strict=True):
        if level:
            before, sample = settled.different, _over_rounds(log_ratios[:, : look.rounds])
            settled = decide(sample, level, math.log1p(limit), settled, one_sided=True).settled
            slower |= running & (settled.different & ~before & (sample.mean < 0)).any(-1)
            ends = running & (slower | _all(settled))
            rounds[ends] = look.rounds
            running &= ~ends
    return SimulatedGates(
        experiments=experiments,
        slower=int(slower.sum()),
        passed=int((_all(settled) & ~slower).sum()),
        mean_rounds=float(rounds.mean()),
    )


def follow(
    log_ratios: NDArray, looks: Sequence[Look], alpha: float, margin: float
) -> tuple[Settled, NDArray]:
    """Follow experiments through all looks; return what they settle, and their rounds.

    ``log_ratios`` is an array (experiments, rounds, arms); the rest is as for `judge`.
    """
    import numpy as np

    experiments, _, arms = log_ratios.shape
    settled = Settled.none((experiments, arms))
    rounds = np.full(experiments, looks[-1].rounds)
    for look, level in zip(looks, levels(looks, alpha=alpha), strict=True):
        if level:
            running = ~_all(settled)
            sample = _over_rounds(log_ratios[:, : look.rounds])
            settled = decide(sample, level, math.log1p(margin), settled).settled
            rounds[running & _all(settled)] = look.rounds
    return settled, rounds


def _over_rounds(values: NDArray) -> Sample:
    """Summarise log ratios of shape (experiments, rounds, arms) over the rounds."""
    import numpy as np

    mean, n = values.mean(1), values.shape[1]
    error = values.std(1, ddof=1) / n**0.5 if n > 1 else np.full_like(mean, np.nan)
    return Sample(mean, error, np.full_like(mean, n, dtype=int))


def _all(settled: Settled) -> NDArray:
    """Return whether every arm is settled, as one boolean for each experiment."""
    return (settled.different | settled.equivalent).all(-1)


def _draw_log_ratios(
    recorded: Sequence[Sequence[float]], looks: Sequence[Look], arms: int, experiments: int, seed: int
) -> NDArray:
    """Draw recorded launches with shuffled labels: an array (experiments, rounds, arms)."""
    import numpy as np

    rounds, width = looks[-1].rounds, min((len(launches) for launches in recorded), default=0)
    if len(recorded) < rounds or width <= arms or arms < 1:
        raise ValueError(
            f"{len(recorded)} rounds of at least {width} launches are too few for {rounds} rounds "
            f"of {arms} arms and a baseline"
        )
    # Some rounds have more launches. The choice must not depend on times, so the first ones are taken.
    seconds = np.array([launches[:width] for launches in recorded], float)
    if not ((seconds > 0) & (seconds < np.inf)).all():
        raise ValueError("step times must be above 0, and finite")
    random = np.random.default_rng(seed)
    start = random.integers(len(recorded), size=(experiments, 1))
    drawn = np.log(seconds)[(start + np.arange(rounds)) % len(recorded)]
    # A run shuffles every two rounds anew, and the second has the reverse order of the first.
    places = np.broadcast_to(np.arange(width), (experiments, (rounds + 1) // 2, width))
    places = np.repeat(random.permuted(places, axis=-1), 2, axis=1)[:, :rounds]
    places[:, 1::2] = width - 1 - places[:, 1::2]
    dealt = np.take_along_axis(drawn, places, axis=-1)
    return dealt[..., :1] - dealt[..., 1 : arms + 1]
