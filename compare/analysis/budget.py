"""Choose when a run judges its verdicts, how much of alpha each look may spend, and when time is over.

Alpha is the probability that a run shows any false difference. The method is that of Lan & DeMets, "Discrete
sequential boundaries for clinical trials", Biometrika 70 (1983). The share of alpha spent up to a look
is t^2, where t is its share of the planned rounds (the power family of Kim & DeMets, Biometrika 74, 1987).
The level of a look is what it may spend (Bonferroni over looks), so the sum of levels holds for any
dependence between looks. During a run, time may change the number of planned rounds, but figures may not.
Looks are few, because each leaves less of alpha for the others. Most of alpha is kept for the end, where the
most rounds tell small differences.

A run may have one of two time limits. A budget is hard, because it ends even a launch that still runs. The
time to settle verdicts only decides whether another round begins after the first ``FIRST_LOOK`` rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from compare.schema.collectives import CollectivesRun
from compare.schema.config import RunConfig
from compare.schema.results import Launch, Run

ALPHA = 0.05
"""A run may show any false difference with at most this probability."""
FIRST_LOOK = 5
"""Number of rounds at the first of several looks.

Fewer rounds may by chance all have nearly the same ratio, for example if each launch is either quick or slow.
"""
TURNS = 4
"""Number of turns of each arm in a round until spreads are known; later it is the minimum."""
TURN_SECONDS = 0.7
"""Mean length of a turn, without the blocks of its reference, which trains without communication."""
LEAD_SECONDS = 0.1
"""Length of the first part of a turn, which is not timed because its steps take longer."""
START_SECONDS = 3.0
"""Minimum time to start the ranks of an arm, because they load torch."""
_CLOSE_TO_END = 1.25
"""A look is left out if the run is planned to have less than this multiple of the look's rounds."""


class Look(msgspec.Struct, frozen=True):
    """One look: a number of rounds after which the verdicts are judged.

    If the clock ends a run before its plan, the run has one more look, whose ``planned`` equals ``rounds``.
    It spends the rest of alpha.
    """

    rounds: int
    """Number of rounds that are finished at the look."""
    planned: int
    """Number of rounds that the run was expected to have at its end, by the clock alone."""


def levels(looks: Sequence[Look], *, alpha: float = ALPHA) -> list[float]:
    """Return the share of ``alpha`` that each look may spend, which is the level of its tests.

    The levels add up to ``alpha`` if the last look has all planned rounds, and else to less. A level is 0 if
    earlier looks have already spent it.
    """
    shares, spent = [], 0.0
    for look in looks:
        allowed = min(1.0, look.rounds / look.planned) ** 2
        shares.append(alpha * max(0.0, allowed - spent))
        spent = max(spent, allowed)
    return shares


def look_rounds(most: float) -> Iterator[int]:
    """Yield the numbers of rounds with a look, up to ``most``: 5, 8, 12, 18 and so on."""
    rounds = FIRST_LOOK
    while rounds <= most:
        yield rounds
        rounds += math.ceil(rounds / 2)


def next_look(done: int) -> int:
    """Return the number of rounds of the first look that comes after ``done`` rounds."""
    return next(rounds for rounds in look_rounds(math.inf) if rounds > done)


def is_close_to_the_end(look: Look) -> bool:
    """Return whether a look is left out because the end of the run has hardly more rounds.

    The look at the end then gets the share of alpha of both.
    """
    return look.rounds < look.planned < _CLOSE_TO_END * look.rounds


def looks(run: Run) -> list[Look]:
    """Return the looks so far, in order: the points of the run at which the verdicts are judged.

    There is at least one. With a fixed number of rounds, the only look is at all rounds done. If time ends
    the run, looks come at ``look_rounds`` and at the end. They are few, because each look leaves less of
    alpha for the others. Time alone decides how many rounds are planned.
    """
    width = len(run.config.arms)
    done = rounds_done(run)
    if run.config.limit_seconds is None or done < FIRST_LOOK:
        return [Look(max(1, done), max(1, done))]
    ends = {rounds: _end(run.launches[: rounds * width]) for rounds in look_rounds(done)}
    so_far = [
        Look(rounds, min(run.config.rounds, rounds + _rounds_left(run, end))) for rounds, end in ends.items()
    ]
    so_far = [look for look in so_far if not is_close_to_the_end(look)]
    # If the clock ends a run before or after its plan, the last look may spend the rest of alpha. If figures
    # end the run at a look, that look spends no more, because figures may not choose its share.
    if run.complete and (not so_far or so_far[-1].rounds < done):
        return [*so_far, Look(done, done)]
    return so_far or [Look(FIRST_LOOK - 1, FIRST_LOOK - 1)]  # which settles nothing


def rounds_done(run: Run) -> int:
    """Return the number of finished rounds that count, which leaves out discarded ones."""
    return len(run.launches) // len(run.config.arms)


def planned_rounds(run: Run) -> int:
    """Return how many rounds the run will have when its time is over, at the pace so far.

    The number is at most ``config.rounds``, which is also the result without a time limit. Only a budget ends
    a run before ``FIRST_LOOK`` rounds.
    """
    launches = [*run.launches, *run.discarded]
    if run.config.limit_seconds is None or not launches:
        return run.config.rounds
    fewest = FIRST_LOOK if run.config.budget_seconds is None else 0
    return min(run.config.rounds, max(fewest, rounds_done(run) + _rounds_left(run, _end(launches))))


def has_time_left(run: Run) -> bool:
    """Return whether the run has fewer rounds than `planned_rounds` allows."""
    return planned_rounds(run) > rounds_done(run)


def least_round_seconds(config: RunConfig, mode: str) -> float:
    """Return the minimum time of a run's first round in seconds: its starts, and if arms take turns, these.

    ``mode`` is that of ``Interleaved``.
    """
    turns = TURNS * TURN_SECONDS if mode == "blocks" else 0.0
    return len(config.arms) * (START_SECONDS + turns)


def least_seconds(run: Run, rounds: int) -> float:
    """Return the minimum time of so many rounds in seconds, by their starts and turns alone.

    If arms take turns, those of later rounds start side by side, one more than the cores have room for.
    """
    arms, mode = len(run.config.arms), run.interleaved.mode
    first = least_round_seconds(run.config, mode)
    spared = 0
    if mode == "blocks":
        ranks, cores = fullest_host(run)
        spared = arms - math.ceil(arms / (1 + cores // ranks))
    return rounds * first - (rounds - 1) * spared * START_SECONDS


def expected_seconds(run: Run, rounds: int) -> float:
    """Return how many seconds the run takes from its first launch until it has ``rounds`` rounds.

    It goes on at the pace so far, which includes the time of discarded rounds. The run must have a launch.
    """
    attempts = len([*run.launches, *run.discarded]) / len(run.config.arms)
    elapsed = elapsed_seconds(run)
    return elapsed + elapsed / attempts * max(0, rounds - rounds_done(run))


def budget_for(run: Run, rounds: int) -> int:
    """Return the budget, in seconds and whole minutes, that holds ``rounds`` rounds at the pace so far."""
    return math.ceil(expected_seconds(run, rounds) / 60) * 60


def elapsed_seconds(run: Run) -> float:
    """Return the seconds from the start of the first launch to the end of the last; 0 without a launch."""
    launches = [*run.launches, *run.discarded]
    return _end(launches) - _start(launches) if launches else 0.0


def seconds_left(run: Run, now: float) -> float:
    """Return how many seconds of the budget are left at ``now``, a Unix time; infinity without a budget.

    The budget starts with the first launch, because the set-up before it takes the same time in every run.
    """
    launches = [*run.launches, *run.discarded]
    start = _start(launches) if launches else now
    return math.inf if run.config.budget_seconds is None else start + run.config.budget_seconds - now


def seconds_to_settle(run: Run) -> float:
    """Return for how many more seconds rounds may begin; infinity for a fixed number of rounds."""
    return math.inf if run.config.limit_seconds is None else run.config.limit_seconds - elapsed_seconds(run)


def fullest_host(run: Run | CollectivesRun) -> tuple[int, int]:
    """Return the number of ranks and of cores of the host that has the most ranks per core.

    The hosts of a rehearsal share the cores of one machine, so they count as one host.
    """
    if run.network.rehearsed:
        return sum(host.slots for host in run.hosts), max(cores_of(run))
    pairs = [(host.slots, cores) for host, cores in zip(run.hosts, cores_of(run), strict=True)]
    return max(pairs, key=lambda pair: pair[0] / pair[1])


def cores_of(run: Run | CollectivesRun) -> list[int]:
    """Return how many cores the ranks may use on each host, in the run's order of hosts."""
    if isinstance(run, Run) and not run.cores_by_host:
        return [run.cores] * len(run.hosts)
    return run.cores_by_host


def is_oversubscribed(run: Run) -> bool:
    """Return whether the ranks of some host have more threads together than the host has cores."""
    ranks, cores = fullest_host(run)
    return ranks * run.config.threads_per_rank > cores


def _rounds_left(run: Run, now: float) -> int:
    """Return how many more rounds fit into the time left at ``now``, a Unix time; 0 without a time limit.

    The pace is that of all rounds until then. Discarded rounds are part of it, because they took time too.
    """
    launches = [*run.launches, *run.discarded]
    elapsed = now - _start(launches)
    rounds = sum(launch.started_at < now for launch in launches) / len(run.config.arms)
    return max(0, int(((run.config.limit_seconds or 0.0) - elapsed) / (elapsed / rounds)))


def _start(launches: list[Launch]) -> float:
    return min(launch.started_at for launch in launches)


def _end(launches: list[Launch]) -> float:
    return max(launch.started_at + launch.seconds for launch in launches)
