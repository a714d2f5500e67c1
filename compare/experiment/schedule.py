"""Choose the next launches, and plan their turns, from the launches so far.

The same run and seed give the same plan. Every round launches every arm once, in an order of its own, so a
drift of the machine affects all arms. If arms do not take turns, a noisy round is discarded and repeated as a
whole, because an arm that is not repeated would keep its noisy figure. Repetitions are limited for the whole
run and for each round. Otherwise a machine that stays noisy would spend all repetitions on one round.

As long as a comparison is open, the length and number of its arms' turns depend on how step times spread
between turns and between launches, never on which arm is faster. Settled arms take short turns. Let s be the
spread that turns of one second would have. With turns of T seconds, the variance of a log ratio is then
s_a^2 / T_a + s_b^2 / T_b. So the length of an arm's turns is proportional to its s times the square root of
the number of its open comparisons. In a given time, that minimises the sum of all variances (J. Neyman,
Journal of the Royal Statistical Society 97, 1934).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from compare.analysis.budget import (
    FIRST_LOOK,
    LEAD_SECONDS,
    TURN_SECONDS,
    TURNS,
    elapsed_seconds,
    has_time_left,
    is_oversubscribed,
    rounds_done,
    seconds_to_settle,
)
from compare.analysis.change import judge_gate, pairs_of
from compare.analysis.figures import Figures, LaunchFigures
from compare.analysis.noise import cohorts, launch_variance, turn_spreads
from compare.analysis.ranking import verdicts
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from compare.schema.job import Planned
from compare.schema.results import Launch, Run
from compare.schema.turns import PlannedTurn

T = TypeVar("T")

MOST_IN_A_ROW = 2
"""Maximum number of discarded attempts at one round; the next attempt counts, noisy or not."""
MOST_TURNS = 10
"""Maximum number of an arm's turns in a cohort; more gain little, because the spread of launches remains."""
SHORT_SECONDS = 0.35
"""Length of the turns of arms without an open comparison: the control, and settled arms."""
_HANDOVER_SECONDS = 0.02
"""Time from the last step of a turn to the first of the next one."""
_RESERVE = 0.85
"""Fraction of a time limit that a plan may fill, as rounds vary and a budget cuts off late ones."""
_ENOUGH_COHORTS = 2
"""Minimum number of finished cohorts from which spreads are estimated."""

Comparison = tuple[str, str]
"""The labels of two arms that are compared; the second is the baseline, or in a gate the old arm."""


def launch_order(config: RunConfig, round_: int) -> tuple[Arm, ...]:
    """Return the arms in the order in which the round launches them; a repetition has the same order.

    Every two rounds get a new random order, which the second of them reverses. So an effect of the position
    in a round acts on every arm in both directions. If the orders of two arms were independent, the same arm
    would be last in all rounds of every fourth run of three rounds.
    """
    pair, second = divmod(round_ - 1, 2)
    arms = list(config.arms)
    random.Random(f"{config.seed}/{pair}").shuffle(arms)
    return tuple(reversed(arms) if second else arms)


def back_and_forth(rounds: int, items: Sequence[T]) -> Iterator[tuple[int, T]]:
    """Yield every pair of a round's number, from 1, and an item, round by round.

    Each round reverses the order of the one before, so a machine that slows down favours no item.
    """
    for round_ in range(1, rounds + 1):
        for item in items if round_ % 2 else reversed(items):
            yield round_, item


def next_launches(run: Run) -> list[Planned]:
    """Return the launches to carry out next: those of a whole round if arms take turns, otherwise one.

    They are in the order in which they start. The list is empty when the run is done.
    """
    finished_rounds, started = divmod(len(run.launches), len(run.config.arms))
    if started == 0 and not _has_another_round(run, finished_rounds):
        return []
    # Above all numbers, too: an arm that did not fit takes its launches with it, and their folders stay.
    done = [*run.launches, *run.discarded]
    number = max([len(done), *(launch.number for launch in done)]) + 1
    round_ = finished_rounds + 1
    in_round = {launch.arm for launch in run.launches[len(run.launches) - started :]}
    arms = [arm for arm in launch_order(run.config, round_) if arm.label not in in_round]
    if run.interleaved.mode == "launches":
        arms = arms[:1]
    return [Planned(number + offset, round_, arm) for offset, arm in enumerate(arms)]


def _has_another_round(run: Run, rounds: int) -> bool:
    """Return whether another round follows the finished ``rounds``."""
    if rounds >= run.config.rounds:
        return False
    if run.config.limit_seconds is None:
        return True
    return has_time_left(run) and not (rounds >= FIRST_LOOK and is_settled(run))


def is_settled(run: Run) -> bool:
    """Return whether the gate or every verdict is decided, or a host is oversubscribed, so none can be."""
    if is_oversubscribed(run):
        return True
    figures = Figures(run)
    if gate := judge_gate(figures):
        return gate.outcome != "too noisy"
    by_arm = verdicts(figures, run.config.baseline)
    return all(verdict.kind != "open" for verdict in by_arm.values())


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
    """Return the run, with its last round discarded if that is noisy and may be repeated.

    Nothing is discarded while a round is unfinished, or if the arms take turns.
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


# ---- turns ----


def plan_turns(run: Run, planned: Sequence[Planned]) -> list[PlannedTurn]:
    """Return all turns of a cohort in their order, which is settled before the cohort starts.

    ``planned`` are the launches of the cohort, one of every arm. In a pass every arm takes one turn. As in
    ``launch_order``, every two passes get a new random order, which the second pass reverses.
    """
    order, turns = random.Random(f"{run.config.seed}/{planned[0].round}/turns"), []
    comparisons, labels = open_comparisons(run), [arm.label for arm in run.config.arms]
    are_known = rounds_done(run) >= _ENOUGH_COHORTS
    spreads = turn_spreads(run) if are_known else dict.fromkeys(labels, 1.0)
    seconds = turn_seconds(labels, comparisons, spreads)
    arms = list(range(len(planned)))
    for number in range(1, turns_of_arm(run, comparisons, seconds, spreads) + 1):
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
    """Return the comparisons whose verdicts are not settled yet.

    Without a time limit these are all comparisons, because such a run is judged only at its end.
    """
    config = run.config
    if config.slower_limit is None:
        pairs = [(arm.label, config.baseline) for arm in config.rivals]
    else:
        pairs = [(new.label, old.label) for new, old in pairs_of(config.arms)]
    kinds: dict[str, str] = {}
    if config.limit_seconds is not None:
        figures = Figures(run)
        if gate := judge_gate(figures):
            kinds = {change.arm: change.kind for change in gate.changes}
        else:
            kinds = {arm: verdict.kind for arm, verdict in verdicts(figures, config.baseline).items()}
    return [pair for pair in pairs if kinds.get(pair[0], "open") == "open"]


def turn_seconds(
    arms: Sequence[str], comparisons: Sequence[Comparison], spreads: Mapping[str, float]
) -> dict[str, float]:
    """Return the length of each arm's turns in seconds, by the arm's label.

    A pass, in which every arm takes one turn, lasts ``TURN_SECONDS`` times the number of arms. The turns of
    arms without an open comparison last ``SHORT_SECONDS``. The other arms share the rest in proportion to the
    spread of their turns times the square root of their number of comparisons, but get no less than that.
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
    """Return how many turns each arm takes in the next cohort, from ``TURNS`` to ``MOST_TURNS``.

    With m turns of each arm, a cohort has the variance L + V / m, where L is that of launches and V that of
    turns, summed over comparisons. A cohort takes the time of its start plus m passes. In a given time, the
    variance of the mean is least for m = sqrt(V / L * start / pass) (two-stage sampling: W. G. Cochran,
    "Sampling Techniques", 3rd ed., 1977). The number is smaller if ``--timeout``, or the time for the rounds
    before the first verdict, leaves no more. It is ``TURNS`` where nothing is estimated.
    """
    if run.config.limit_seconds is None:
        return TURNS
    if rounds_done(run) < _ENOUGH_COHORTS or not comparisons or is_oversubscribed(run):
        return TURNS
    of_turns = sum(spreads[arm] ** 2 / seconds[arm] for pair in comparisons for arm in pair)
    of_launches = sum(launch_variance(run, *pair) or 0.0 for pair in comparisons)
    # It is longer than planned if steps are slow, because a turn has a minimum number of steps.
    one_pass = sum(map(_mean_turn_seconds, cohorts(run)[-1]))
    passes = sum(map(_turns_taken, run.of(run.config.arms[0])))
    start = max(0.0, elapsed_seconds(run) - passes * one_pass) / rounds_done(run)
    best = math.sqrt(of_turns / of_launches * start / one_pass) if of_launches > 0 else math.inf
    missing = max(1, FIRST_LOOK - rounds_done(run))
    fitting = (_RESERVE * seconds_to_settle(run) / missing - start) / one_pass
    return math.floor(max(TURNS, min(best, MOST_TURNS, fitting, *_turns_within_timeout(run))))


def _mean_turn_seconds(launch: Launch) -> float:
    """Return the mean length of a launch's turns in seconds, with the time until the next turn begins."""
    blocks = launch.ranks[0].blocks
    of_blocks = sum(block.wall_ns * (block.steps + 1) / block.steps for block in blocks) / 1e9
    return of_blocks / _turns_taken(launch) + LEAD_SECONDS + _HANDOVER_SECONDS


def _turns_taken(launch: Launch) -> int:
    return len({block.turn for block in launch.ranks[0].blocks})


def _turns_within_timeout(run: Run) -> Iterator[float]:
    """Yield for each arm how many turns its launch may take before ``--timeout`` would end it."""
    for launch in cohorts(run)[-1]:
        turn, busy = _mean_turn_seconds(launch), launch.seconds - launch.ranks[0].waited_ns / 1e9
        outside = max(0.0, busy - turn * _turns_taken(launch))
        yield (_RESERVE * run.config.launch_timeout_seconds - outside) / turn
