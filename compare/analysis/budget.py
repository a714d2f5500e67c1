"""Compute what is left of the time budget and of the cores."""

from __future__ import annotations

import math

from compare.analysis.verdict import FIRST_LOOK, Look
from compare.schema.results import Launch, Run


def looks(run: Run) -> list[Look]:
    """Return the looks at the verdicts so far.

    A run without a budget has one look, at its end. A run under a budget looks after every round. Time alone
    decides how many rounds a budget allows.
    """
    width = len(run.config.arms)
    done = len(run.launches) // width
    if run.config.budget_seconds is None or done < FIRST_LOOK:
        return [Look(max(1, done), max(1, done))]
    ends = {rounds: _end(run.launches[: rounds * width]) for rounds in range(FIRST_LOOK, done + 1)}
    found = [
        Look(rounds, min(run.config.rounds, rounds + _rounds_left(run, end))) for rounds, end in ends.items()
    ]
    # The budget ended before the planned rounds: the last look may spend the rest of alpha.
    return found + ([Look(done, done)] if run.complete and found[-1].planned > done else [])


def has_time_left(run: Run) -> bool:
    """Return whether the budget allows another round at the pace so far."""
    taken = [*run.launches, *run.discarded]
    return run.config.budget_seconds is None or not taken or _rounds_left(run, _end(taken)) >= 1


def seconds_left(run: Run, now: float) -> float:
    """Return what is left of the budget at a Unix time.

    It is infinity without a budget. The budget starts with the first launch: what comes before is the same
    for every run.
    """
    taken = [*run.launches, *run.discarded]
    start = _start(taken) if taken else now
    return math.inf if run.config.budget_seconds is None else start + run.config.budget_seconds - now


def fullest_host(run: Run) -> tuple[int, int]:
    """Return ranks and cores of the most oversubscribed host."""
    cores = run.cores_by_host or [run.cores] * len(run.hosts)
    pairs = [(host.slots, own) for host, own in zip(run.hosts, cores, strict=True)]
    return max(pairs, key=lambda pair: pair[0] / pair[1])


def is_oversubscribed(run: Run) -> bool:
    """Return whether a host has more threads than cores."""
    ranks, cores = fullest_host(run)
    return ranks * run.config.threads_per_rank > cores


def _rounds_left(run: Run, at: float) -> int:
    """Return how many more rounds fit into the budget.

    Discarded rounds count for the pace: they took their time too.
    """
    taken = [*run.launches, *run.discarded]
    elapsed = at - _start(taken)
    rounds = sum(launch.started_at < at for launch in taken) / len(run.config.arms)
    return max(0, int(((run.config.budget_seconds or 0.0) - elapsed) / (elapsed / rounds)))


def _start(launches: list[Launch]) -> float:
    return min(launch.started_at for launch in launches)


def _end(launches: list[Launch]) -> float:
    return max(launch.started_at + launch.seconds for launch in launches)
