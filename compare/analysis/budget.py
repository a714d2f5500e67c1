"""Compute what is left of the time and of the cores.

A budget is hard: it ends a launch that still runs. The time to settle verdicts only decides whether another
round begins, and never before ``FIRST_LOOK`` rounds.
"""

from __future__ import annotations

import math

from compare.analysis.looks import FIRST_LOOK, Look, is_close_to_the_end, look_rounds
from compare.schema.results import Launch, Run


def looks(run: Run) -> list[Look]:
    """Return the looks at the verdicts so far.

    A run of exactly so many rounds has one look, at its end. Otherwise there are few, at ``look_rounds`` and
    at the end, because each one makes the others cost more. Time alone decides how many rounds are planned.
    """
    width = len(run.config.arms)
    done = rounds_done(run)
    if run.config.limit_seconds is None or done < FIRST_LOOK:
        return [Look(max(1, done), max(1, done))]
    ends = {rounds: _end(run.launches[: rounds * width]) for rounds in look_rounds(done)}
    found = [
        Look(rounds, min(run.config.rounds, rounds + _rounds_left(run, end))) for rounds, end in ends.items()
    ]
    found = [look for look in found if not is_close_to_the_end(look)]
    # Where the clock ends a run before or after its plan, the last look may spend the rest of alpha. Where
    # figures end it, at a look, that look spends no more: they may not choose its share.
    if run.complete and (not found or found[-1].rounds < done):
        return [*found, Look(done, done)]
    return found or [Look(FIRST_LOOK - 1, FIRST_LOOK - 1)]  # which settles nothing


def rounds_done(run: Run) -> int:
    """Count the whole rounds that are not discarded."""
    return len(run.launches) // len(run.config.arms)


def planned_rounds(run: Run) -> int:
    """Return the maximum number of rounds at the pace so far."""
    taken = [*run.launches, *run.discarded]
    if run.config.limit_seconds is None or not taken:
        return run.config.rounds
    fewest = FIRST_LOOK if run.config.budget_seconds is None else 0
    return min(run.config.rounds, max(fewest, rounds_done(run) + _rounds_left(run, _end(taken))))


def has_time_left(run: Run) -> bool:
    """Return whether time allows another round at the pace so far."""
    return planned_rounds(run) > rounds_done(run)


def expected_seconds(run: Run, rounds: int) -> float:
    """Return the time of so many rounds at the pace so far."""
    attempts = len([*run.launches, *run.discarded]) / len(run.config.arms)
    elapsed = elapsed_seconds(run)
    return elapsed + elapsed / attempts * max(0, rounds - rounds_done(run))


def elapsed_seconds(run: Run) -> float:
    """Return the time from the first launch to the last end."""
    taken = [*run.launches, *run.discarded]
    return _end(taken) - _start(taken) if taken else 0.0


def seconds_left(run: Run, now: float) -> float:
    """Return what is left of the budget at a Unix time.

    It is infinity without a budget. The budget starts with the first launch: what comes before is the same
    for every run.
    """
    taken = [*run.launches, *run.discarded]
    start = _start(taken) if taken else now
    return math.inf if run.config.budget_seconds is None else start + run.config.budget_seconds - now


def seconds_to_settle(run: Run) -> float:
    """Return what is left of the time for rounds; infinity where none is given."""
    return math.inf if run.config.limit_seconds is None else run.config.limit_seconds - elapsed_seconds(run)


def fullest_host(run: Run) -> tuple[int, int]:
    """Return ranks and cores of the most oversubscribed host.

    The hosts of a rehearsal share the cores of one machine.
    """
    if run.network.rehearsed:
        return sum(host.slots for host in run.hosts), run.cores
    cores = run.cores_by_host or [run.cores] * len(run.hosts)
    pairs = [(host.slots, own) for host, own in zip(run.hosts, cores, strict=True)]
    return max(pairs, key=lambda pair: pair[0] / pair[1])


def is_oversubscribed(run: Run) -> bool:
    """Return whether a host has more threads than cores."""
    ranks, cores = fullest_host(run)
    return ranks * run.config.threads_per_rank > cores


def _rounds_left(run: Run, at: float) -> int:
    """Return how many more rounds fit into the time.

    Discarded rounds count for the pace: they took their time too.
    """
    taken = [*run.launches, *run.discarded]
    elapsed = at - _start(taken)
    rounds = sum(launch.started_at < at for launch in taken) / len(run.config.arms)
    return max(0, int(((run.config.limit_seconds or 0.0) - elapsed) / (elapsed / rounds)))


def _start(launches: list[Launch]) -> float:
    return min(launch.started_at for launch in launches)


def _end(launches: list[Launch]) -> float:
    return max(launch.started_at + launch.seconds for launch in launches)
