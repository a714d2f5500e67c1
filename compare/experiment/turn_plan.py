"""Plan the turns of a cohort from the finished ones. Pure and seeded.

Among open comparisons, lengths and numbers follow from the spread of turns and launches, never from means.
What is settled takes short turns. The variance of a log ratio is s_a^2 / T_a + s_b^2 / T_b for turns of the
lengths T with the spreads s. An arm has a length in proportion to s, times the square root of the number of
comparisons that it takes part in. In a given time, that minimises the sum of all variances (J. Neyman,
Journal of the Royal Statistical Society 97, 1934).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

from compare.analysis.budget import elapsed_seconds, is_oversubscribed, rounds_done, seconds_to_settle
from compare.analysis.gate import judge_gate, pairs_of
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.ranking import verdicts
from compare.analysis.spread import cohorts, launch_variance, turn_spreads
from compare.schema.config import RunConfig
from compare.schema.job import Planned
from compare.schema.results import Launch, Run
from compare.schema.turns import PlannedTurn

TURNS = 4
"""Turns of an arm in a cohort, while little is known; also the fewest."""
MOST_TURNS = 10
"""More gain little: the spread of launches remains."""
TURN_SECONDS = 0.7
"""Mean length of a turn, without its blocks of the reference."""
SHORT_SECONDS = 0.35
"""Length of the turns of arms in no open comparison: the control, and what is settled."""
LEAD_SECONDS = 0.1
"""First part of a turn, not timed: its steps take longer."""
START_SECONDS = 3.0
"""Least time to start the ranks of an arm: they load torch."""
_HANDOVER_SECONDS = 0.02
"""Time from the last step of a turn to the first of the next one."""
_RESERVE = 0.85
"""Share of a limit that is planned for: rounds differ, and a budget ends one that is late."""
_ENOUGH_COHORTS = 2
"""Finished cohorts that tell something about spreads."""

Comparison = tuple[str, str]
"""Labels of two arms that are compared."""


def plan_turns(run: Run, planned: Sequence[Planned]) -> list[PlannedTurn]:
    """Order the turns of a cohort, settled before its first one.

    Every arm takes one turn in a pass. As in ``order_of``, every two passes are shuffled anew, and the second
    is the first in reverse. ``planned`` are the launches of the cohort.
    """
    order, turns = random.Random(f"{run.config.seed}/{planned[0].round}/turns"), []
    open_ones = open_comparisons(run)
    spreads = _spreads(run)
    seconds = turn_seconds([arm.label for arm in run.config.arms], open_ones, spreads)
    arms = list(range(len(planned)))
    for number in range(1, turns_of_arm(run, open_ones, seconds, spreads) + 1):
        if number % 2:
            order.shuffle(arms)
        else:
            arms.reverse()
        turns += [
            PlannedTurn(
                arm=arm,
                number=number,
                seconds=seconds[planned[arm].arm.label],
                lead_seconds=LEAD_SECONDS,
            )
            for arm in arms
        ]
    return turns


def open_comparisons(run: Run) -> list[Comparison]:
    """Return the pairs of arms that no look has settled yet, baseline or older twin last.

    A run of exactly so many rounds has its only look at the end.
    """
    config = run.config
    if config.slower_limit is not None:
        pairs = [(new.label, old.label) for new, old in pairs_of(config.arms)]
    else:
        rivals = [arm.label for arm in config.rivals]
        pairs = [(arm, config.baseline) for arm in rivals]
    settled = set() if config.limit_seconds is None else _settled(run)
    return [pair for pair in pairs if pair[0] not in settled]


def _settled(run: Run) -> set[str]:
    """Return the labels of arms with a verdict."""
    gate = judge_gate(run)
    kinds = (
        {change.arm: change.kind for change in gate.changes}
        if gate
        else {arm: verdict.kind for arm, verdict in verdicts(run, run.config.baseline).items()}
    )
    return {arm for arm, kind in kinds.items() if kind != "unresolved"}


def turn_seconds(
    arms: Sequence[str], comparisons: Sequence[Comparison], spreads: Mapping[str, float]
) -> dict[str, float]:
    """Share out the time of a pass among the arms.

    A pass takes as many times `TURN_SECONDS` as it has arms. Arms in no comparison take `SHORT_SECONDS`, and
    the others share the rest by the spread of their turns.
    """
    weights = {
        arm: spreads[arm] * math.sqrt(count)
        for arm in arms
        if (count := sum(arm in pair for pair in comparisons))
    }
    if not weights:
        return dict.fromkeys(arms, TURN_SECONDS)
    rest = len(arms) * TURN_SECONDS - (len(arms) - len(weights)) * SHORT_SECONDS
    whole = sum(weights.values())
    return {
        arm: max(SHORT_SECONDS, rest * weights[arm] / whole) if arm in weights else SHORT_SECONDS
        for arm in arms
    }


def turns_of_arm(
    run: Run, comparisons: Sequence[Comparison], seconds: Mapping[str, float], spreads: Mapping[str, float]
) -> int:
    """Return how many turns each arm of the next cohort takes.

    A cohort of m turns has the variance L + V / m, and costs the time to start it plus m passes. At equal
    time, m = sqrt(V / L * start / pass) makes the variance of the mean smallest (two-stage sampling: W. G.
    Cochran, "Sampling Techniques", 3rd ed., 1977). L is of launches and V of turns, summed over comparisons.
    At least five cohorts must fit into the time. Without a limit of time, more turns only make a run longer.
    """
    if run.config.limit_seconds is None:
        return TURNS
    if rounds_done(run) < _ENOUGH_COHORTS or not comparisons or is_oversubscribed(run):
        return TURNS
    of_turns = sum(spreads[arm] ** 2 / seconds[arm] for pair in comparisons for arm in pair)
    of_launches = sum(launch_variance(run, *pair) or 0.0 for pair in comparisons)
    one_pass = _pass_seconds(run)
    start = max(0.0, elapsed_seconds(run) - _passes(run) * one_pass) / rounds_done(run)
    best = math.sqrt(of_turns / of_launches * start / one_pass) if of_launches > 0 else math.inf
    missing = max(1, FIRST_LOOK - rounds_done(run))
    fitting = (_RESERVE * seconds_to_settle(run) / missing - start) / one_pass
    return math.floor(max(TURNS, min(best, MOST_TURNS, fitting, *_most_by_timeout(run))))


def least_round_seconds(config: RunConfig, mode: str) -> float:
    """Return the least time of a round, by its starts and turns."""
    turns = TURNS * TURN_SECONDS if mode == "blocks" else 0.0
    return len(config.arms) * (START_SECONDS + turns)


def _spreads(run: Run) -> dict[str, float]:
    if rounds_done(run) < _ENOUGH_COHORTS:
        return dict.fromkeys((arm.label for arm in run.config.arms), 1.0)
    return turn_spreads(run)


def _pass_seconds(run: Run) -> float:
    """Return what a pass of the last cohort took, with the blocks of the reference.

    A turn of slow steps is longer than planned.
    """
    return sum(map(_turn_seconds, cohorts(run)[-1]))


def _turn_seconds(launch: Launch) -> float:
    """Return what a turn of a launch took on average, from its first step to the next one's turn."""
    blocks = launch.ranks[0].blocks
    of_blocks = sum(block.wall_ns * (block.steps + 1) / block.steps for block in blocks) / 1e9
    return of_blocks / len({block.turn for block in blocks}) + LEAD_SECONDS + _HANDOVER_SECONDS


def _most_by_timeout(run: Run) -> Iterator[float]:
    """Yield the turns that each arm's launch has time for before ``--timeout`` ends it."""
    for launch in cohorts(run)[-1]:
        rank, turn = launch.ranks[0], _turn_seconds(launch)
        own = launch.seconds - rank.waited_ns / 1e9
        outside = max(0.0, own - turn * len({block.turn for block in rank.blocks}))
        yield (_RESERVE * run.config.launch_timeout_seconds - outside) / turn


def _passes(run: Run) -> int:
    """Return how many passes the finished cohorts had together."""
    first = run.config.arms[0]
    return sum(len({block.turn for block in launch.ranks[0].blocks}) for launch in run.of(first))
