"""Compute what would let a budget hold the rounds of a verdict: more time, fewer steps, or fewer arms."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from compare.analysis.budget import (
    FIRST_LOOK,
    LEAD_SECONDS,
    expected_seconds,
    is_oversubscribed,
    least_seconds,
    rounds_done,
)
from compare.analysis.figures import Figures
from compare.analysis.verdict import Verdict
from compare.schema.results import Launch, Run

_FULL_SECONDS = 10
"""Budgets are multiples of this number of seconds."""


class Shortfall(NamedTuple):
    """What a budget lacks to hold ``FIRST_LOOK`` rounds, and what would fit."""

    needed_seconds: float
    """Time of these rounds: at the pace so far, or before the first round by their starts and turns alone."""
    budget_seconds: int | None
    """A budget that holds them. It and the next two are None before the first round, without a pace."""
    steps: int | None
    """The most training steps with which the budget holds them; None if fewer steps do not help."""
    arms: int | None
    """The most arms that fit; None if two and the control are too many."""


def shortfall(run: Run) -> Shortfall | None:
    """Return what the budget of a run lacks to hold the rounds of a verdict; None if it holds them.

    It is also None for a run that has no budget, needs no verdict, or has fewer rounds by ``--repeats``.
    """
    config, budget = run.config, run.config.budget_seconds
    if budget is None or not config.rivals or config.rounds < FIRST_LOOK:
        return None
    has_pace = rounds_done(run) > 0
    needed = expected_seconds(run, FIRST_LOOK) if has_pace else least_seconds(run, FIRST_LOOK)
    if needed <= budget:
        return None
    return Shortfall(
        needed_seconds=needed,
        budget_seconds=math.ceil(needed / _FULL_SECONDS) * _FULL_SECONDS if has_pace else None,
        steps=_fitting_steps(run, needed - budget) if has_pace else None,
        arms=_fitting_arms(run, budget / needed) if has_pace else None,
    )


def rounds_needed(run: Run, verdicts: Iterable[Verdict]) -> tuple[int | None, float | None]:
    """Return after about how many rounds all arms would be decided, and their time at the pace so far.

    Both are None if that is not known.
    """
    done = rounds_done(run)
    more = [verdict.rounds_to_settle for verdict in verdicts if verdict.kind == "open"]
    known = [rounds for rounds in more if rounds is not None]
    if done == 0 or is_oversubscribed(run) or (done >= FIRST_LOOK and (not known or len(known) < len(more))):
        return None, None
    rounds = FIRST_LOOK if done < FIRST_LOOK else done + max(known)
    return rounds, expected_seconds(run, rounds)


def _fitting_arms(run: Run, share: float) -> int | None:
    """Return how many arms take ``share`` of the time of all; None if they are too few to compare."""
    config, arms = run.config, math.floor(len(run.config.arms) * share)
    fewest = 2 + (config.control is not None)
    return arms if config.slower_limit is None and arms >= fewest else None


def _fitting_steps(run: Run, missing_seconds: float) -> int | None:
    """Return the most steps that spare ``missing_seconds`` in ``FIRST_LOOK`` rounds; None if none do.

    Steps in the turns of an arm are not spared, because turns have a length of their own.
    """
    config, figures = run.config, Figures(run)
    costs = []
    for launch in run.launches[-len(config.arms) :]:
        seconds = figures.step_seconds(launch.arm)[launch.round]
        costs.append((seconds, config.untimed_steps + _steps_in_turns(launch, seconds)))

    def spared(steps: int) -> float:
        total = config.total_steps
        return sum(seconds * max(0, total - max(steps, in_turns)) for seconds, in_turns in costs)

    possible = range(config.untimed_steps + 1, config.total_steps)
    count = bisect_right(possible, -missing_seconds / FIRST_LOOK, key=lambda steps: -spared(steps))
    return _two_digits(possible[count - 1]) if count else None


def _two_digits(number: int) -> int:
    """Return a number whose digits but the first two are replaced by zeros."""
    return number - number % 10 ** max(0, len(str(number)) - 2)


def _steps_in_turns(launch: Launch, step_seconds: float) -> int:
    """Return how many training steps the turns of a launch took; 0 without turns."""
    blocks = [block for block in launch.ranks[0].blocks if block.turn and block.mode == "training"]
    lead = max(1, round(LEAD_SECONDS / step_seconds))
    turns = len({block.turn for block in blocks})
    return sum(block.steps + 1 for block in blocks) + turns * lead
