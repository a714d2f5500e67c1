"""What to launch next, from what has been launched so far: pure, seeded, and with no process in sight.

Every round launches every arm once, in an order of its own: what drifts on a machine then falls on
all arms alike.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from compare.arms import Arm
    from compare.config import RunConfig


class Planned(NamedTuple):
    """One launch to come."""

    number: int
    """Counts from 1 over the whole run."""
    round: int
    """Counts from 1."""
    arm: Arm


def order_of(config: RunConfig, round_: int) -> tuple[Arm, ...]:
    """Shuffle the arms for one round; the same seed gives the same order."""
    arms = list(config.arms)
    random.Random(f"{config.seed}/{round_}").shuffle(arms)
    return tuple(arms)


def total_launches(config: RunConfig) -> int:
    """Count the launches of a whole run."""
    return config.rounds * len(config.arms)


def next_launch(config: RunConfig, finished: int) -> Planned | None:
    """Say what comes after ``finished`` launches, or None when the run is done."""
    round_index, position = divmod(finished, len(config.arms))
    if round_index >= config.rounds:
        return None
    return Planned(finished + 1, round_index + 1, order_of(config, round_index + 1)[position])
