"""How much of a time budget and of the cores is left."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from compare.analysis.verdict import FIRST_LOOK, Look

if TYPE_CHECKING:
    from compare.schema.results import Launch, Run


def looks(run: Run) -> list[Look]:
    """Return when verdicts were asked for: once at the end or, under a budget, after every round.

    How many rounds a budget allows is told from the clock alone, never from the figures.
    """
    width = len(run.config.arms)
    done = len(run.launches) // width
    if run.config.budget_seconds is None or done < FIRST_LOOK:
        return [Look(max(1, done), max(1, done))]
    ends = {rounds: _end(run.launches[: rounds * width]) for rounds in range(FIRST_LOOK, done + 1)}
    found = [
        Look(rounds, min(run.config.rounds, rounds + _rounds_left(run, end))) for rounds, end in ends.items()
    ]
    # Time ended it before its plan: the last look may spend what is left.
    return found + ([Look(done, done)] if run.complete and found[-1].planned > done else [])


def has_time_left(run: Run) -> bool:
    """Whether a budget, if there is one, allows another round from now on, at the pace so far."""
    taken = [*run.launches, *run.set_aside]
    return run.config.budget_seconds is None or not taken or _rounds_left(run, _end(taken)) >= 1


def seconds_left(run: Run, now: float) -> float:
    """Say how much of a budget is left at a Unix time; infinity where there is none.

    It begins with the first launch: what comes before that is the same for every run.
    """
    taken = [*run.launches, *run.set_aside]
    begun = _begin(taken) if taken else now
    return math.inf if run.config.budget_seconds is None else begun + run.config.budget_seconds - now


def _rounds_left(run: Run, at: float) -> int:
    """Say how many more rounds fitted into the budget at a Unix time, at the pace of the launches until then.

    Rounds that were set aside took their time as well, and will come again.
    """
    taken = [*run.launches, *run.set_aside]
    elapsed = at - _begin(taken)
    rounds = sum(launch.started_at < at for launch in taken) / len(run.config.arms)
    return max(0, int(((run.config.budget_seconds or 0.0) - elapsed) / (elapsed / rounds)))


def _begin(launches: list[Launch]) -> float:
    return min(launch.started_at for launch in launches)


def _end(launches: list[Launch]) -> float:
    return max(launch.started_at + launch.seconds for launch in launches)


def fullest_host(run: Run) -> tuple[int, int]:
    """Return ranks and cores of the host that has most ranks a core: others' idle cores are no use to it."""
    cores = run.cores_by_host or [run.cores] * len(run.hosts)
    pairs = [(host.slots, own) for host, own in zip(run.hosts, cores, strict=True)]
    return max(pairs, key=lambda pair: pair[0] / pair[1])


def is_oversubscribed(run: Run) -> bool:
    """Whether a host has more threads than cores: nothing is ranked there, so no verdict is ever shown."""
    ranks, cores = fullest_host(run)
    return ranks * run.config.threads_per_rank > cores
