"""Judge whether a run is too noisy to compare its arms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compare.analysis.budget import is_oversubscribed
from compare.analysis.estimate import Estimate
from compare.analysis.step_times import noisy_rounds
from compare.analysis.verdict import Verdict
from compare.schema.results import Run

NOISE_LIMIT = 0.25
"""Largest noise floor of a run without a clear difference."""
_FEWEST_ROUNDS = 3
"""Fewer rounds have no useful interval."""
_BUDGET_STEP_SECONDS = 60


def is_too_noisy(
    run: Run, noise: float | None, verdicts: Sequence[Verdict], efficiencies: Sequence[Estimate]
) -> bool:
    """Return whether noise hides every difference between the arms.

    The noise floor must exceed the limit, and no interval may be narrower or exclude equality. Without
    verdicts, the efficiencies decide. An A/A test measures the noise itself, and oversubscribed arms are not
    ranked in any case.
    """
    if tells_nothing(run):
        return True
    rounds = len({launch.round for launch in run.launches})
    if noise is None or noise <= NOISE_LIMIT or rounds < _FEWEST_ROUNDS:
        return False
    if run.config.comparisons is not None or is_oversubscribed(run):
        return False
    if verdicts:
        return all(verdict.kind == "unresolved" and _is_wide(verdict) for verdict in verdicts)
    return all(efficiency.high >= 1 for efficiency in efficiencies)


def tells_nothing(run: Run) -> bool:
    """Return whether all of a run's one or two rounds are noisy.

    Then nothing tells noise from a difference.
    """
    if run.config.comparisons is not None or len(run.config.arms) == 1 or is_oversubscribed(run):
        return False
    rounds = len({launch.round for launch in run.launches})
    return len(noisy_rounds(run)) == rounds < _FEWEST_ROUNDS and rounds > 0


def _is_wide(verdict: Verdict) -> bool:
    low, high = verdict.low, verdict.high
    return low is None or high is None or (low <= 1 <= high and high / low > (1 + NOISE_LIMIT) ** 2)


def budget_to_compare(run: Run, noise: float) -> int:
    """Return about how many seconds bring the noise floor below its limit.

    The floor falls with the square root of the rounds, at the pace so far. Twice the time is the least.
    """
    taken = [*run.launches, *run.discarded]
    start = min(launch.started_at for launch in taken)
    elapsed = max(launch.started_at + launch.seconds for launch in taken) - start
    factor = max(2.0, (math.log1p(noise) / math.log1p(NOISE_LIMIT)) ** 2)
    return math.ceil(elapsed * factor / _BUDGET_STEP_SECONDS) * _BUDGET_STEP_SECONDS
