"""What to launch next, from what has been launched so far: pure, seeded, and with no process in sight.

Every round launches every arm once, in an order of its own: what drifts on a machine then falls on
all arms alike. A round during which others used the machine is set aside whole and taken again, a bounded
number of times: never one arm of it alone, or its rival would keep the disturbed figure.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from compare.analysis.budget import has_time_left, is_oversubscribed
from compare.analysis.ranking import verdicts
from compare.analysis.step_times import is_disturbed
from compare.analysis.verdict import FIRST_LOOK
from compare.schema.job import Planned

if TYPE_CHECKING:
    from compare.schema.arms import Arm
    from compare.schema.config import RunConfig
    from compare.schema.results import Run


def order_of(config: RunConfig, round_: int) -> tuple[Arm, ...]:
    """Order the arms for one round; the same seed gives the same order, and a round taken again has it too.

    Every two rounds are shuffled anew, and the second is the first in reverse: whatever the place in a
    round does to a launch, it does to every arm in both directions. Orders that know nothing of each other
    would put one arm behind its rival three times running in a quarter of all runs of three rounds.
    """
    pair, second = divmod(round_ - 1, 2)
    arms = list(config.arms)
    random.Random(f"{config.seed}/{pair}").shuffle(arms)
    return tuple(reversed(arms) if second else arms)


def next_launch(run: Run) -> Planned | None:
    """Say what comes next, or None when the run is done."""
    round_index, position = divmod(len(run.launches), len(run.config.arms))
    if position == 0 and not _goes_on(run, round_index):
        return None
    round_ = round_index + 1
    arm = order_of(run.config, round_)[position]
    return Planned(len(run.launches) + len(run.set_aside) + 1, round_, arm)


def _goes_on(run: Run, rounds: int) -> bool:
    """Whether another round is to come after so many."""
    if rounds >= run.config.rounds:
        return False
    if run.config.budget_seconds is None:
        return True
    return has_time_left(run) and not (rounds >= FIRST_LOOK and is_settled(run))


def is_settled(run: Run) -> bool:
    """Whether every arm has a verdict that more rounds would not change, or none will ever be shown."""
    if is_oversubscribed(run):
        return True
    found = verdicts(run, run.config.baseline).values()
    return all(verdict.kind != "unresolved" for verdict in found)


def end_for_want_of_time(run: Run) -> Run:
    """Set aside what there is of a round that will not be finished: its arms have nobody to stand beside.

    If it was being taken again, the attempt before counts after all, disturbed as it was.
    """
    width = len(run.config.arms)
    whole = len(run.launches) // width * width
    launches, unfinished = run.launches[:whole], run.launches[whole:]
    set_aside, before = run.set_aside[:-width], run.set_aside[-width:]
    if before and before[0].round == whole // width + 1:
        return msgspec.structs.replace(run, launches=launches + before, set_aside=set_aside + unfinished)
    return msgspec.structs.replace(run, launches=launches, set_aside=run.set_aside + unfinished)


def set_aside_disturbed(run: Run) -> Run:
    """Set the last round aside where it is complete, was disturbed, and may be taken again."""
    width = len(run.config.arms)
    if not run.launches or len(run.launches) % width:
        return run
    last = run.launches[-width:]
    taken_again = len(run.set_aside) // width
    if not any(map(is_disturbed, last)) or taken_again >= run.config.max_reruns or not has_time_left(run):
        return run
    return msgspec.structs.replace(run, launches=run.launches[:-width], set_aside=[*run.set_aside, *last])
