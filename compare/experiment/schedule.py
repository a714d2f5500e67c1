"""Choose the next launch from the launches so far; the same run and seed give the same choice.

Every round launches every arm once, in an order of its own. A drift of the machine then affects all arms.
A noisy round is discarded and repeated as a whole, because an arm that is not repeated would keep its noisy
figure. A run has a limit on repetitions, and each round has one, too. Otherwise a machine that stays noisy
would spend all repetitions on one round.
"""

from __future__ import annotations

import random

import msgspec

from compare.analysis.budget import has_time_left, is_oversubscribed
from compare.analysis.change import judge_gate
from compare.analysis.figures import Figures, LaunchFigures
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.ranking import verdicts
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from compare.schema.job import Planned
from compare.schema.results import Run

MOST_IN_A_ROW = 2
"""Maximum number of discarded attempts at one round; the next attempt counts, noisy or not."""


def order_of(config: RunConfig, round_: int) -> tuple[Arm, ...]:
    """Return the arms of a round in the order of their launches; a repetition has the same order.

    Each two rounds get a new random order, which the second round reverses. So an effect of the position in
    a round acts on every arm in both directions. With independent orders of two arms, the same arm would be
    last in all rounds of every fourth run of three rounds.
    """
    pair, second = divmod(round_ - 1, 2)
    arms = list(config.arms)
    random.Random(f"{config.seed}/{pair}").shuffle(arms)
    return tuple(reversed(arms) if second else arms)


def next_cohort(run: Run) -> list[Planned]:
    """Return the launches of the next round in order; empty when the run is done."""
    rounds = len(run.launches) // len(run.config.arms)
    if not _goes_on(run, rounds):
        return []
    first = len(run.launches) + len(run.discarded) + 1
    return [Planned(first + i, rounds + 1, arm) for i, arm in enumerate(order_of(run.config, rounds + 1))]


def next_launch(run: Run) -> Planned | None:
    """Return the next launch, or None when the run is done."""
    round_index, position = divmod(len(run.launches), len(run.config.arms))
    if position == 0 and not _goes_on(run, round_index):
        return None
    round_ = round_index + 1
    arm = order_of(run.config, round_)[position]
    return Planned(len(run.launches) + len(run.discarded) + 1, round_, arm)


def _goes_on(run: Run, rounds: int) -> bool:
    """Return whether another round follows the finished ``rounds``."""
    if rounds >= run.config.rounds:
        return False
    if run.config.limit_seconds is None:
        return True
    return has_time_left(run) and not (rounds >= FIRST_LOOK and is_settled(run))


def is_settled(run: Run) -> bool:
    """Return whether every verdict is resolved, or none will be shown because a host is oversubscribed."""
    if is_oversubscribed(run):
        return True
    figures = Figures(run)
    if gate := judge_gate(figures):
        return gate.outcome != "too noisy"
    found = verdicts(figures, run.config.baseline).values()
    return all(verdict.kind != "unresolved" for verdict in found)


def discard_unfinished(run: Run) -> Run:
    """Return the run with the launches of its unfinished last round discarded.

    If that round was a repetition, the attempt before it counts after all, although it was noisy.
    """
    width = len(run.config.arms)
    whole = len(run.launches) // width * width
    launches, unfinished = run.launches[:whole], run.launches[whole:]
    discarded, before = run.discarded[:-width], run.discarded[-width:]
    if before and before[0].round == whole // width + 1:
        return msgspec.structs.replace(run, launches=launches + before, discarded=discarded + unfinished)
    return msgspec.structs.replace(run, launches=launches, discarded=run.discarded + unfinished)


def discard_noisy(run: Run) -> Run:
    """Return the run with its last round discarded if that is noisy and may be repeated, otherwise as is.

    Within a round, and in a run in turns, nothing is discarded.
    """
    width = len(run.config.arms)
    if not run.launches or len(run.launches) % width or run.interleaved.mode == "blocks":
        return run
    last = run.launches[-width:]
    attempts = [launch.round for launch in run.discarded[::width]]
    used_up = len(attempts) >= run.config.max_reruns or attempts.count(last[0].round) >= MOST_IN_A_ROW
    repeated = msgspec.structs.replace(run, launches=run.launches[:-width], discarded=[*run.discarded, *last])
    noisy = any(LaunchFigures(launch).is_noisy for launch in last)
    return repeated if not used_up and noisy and has_time_left(repeated) else run
