"""Compute how much time and how many rounds a run has left, and whether threads outnumber cores.

A run may have one of two time limits. A budget is hard, because it ends even a launch that still runs. The
time to settle verdicts only decides whether another round begins after the first ``FIRST_LOOK`` rounds.
"""

from __future__ import annotations

import math

from compare.analysis.looks import FIRST_LOOK, Look, is_close_to_the_end, look_rounds
from compare.schema.collectives import CollectivesRun
from compare.schema.results import Launch, Run


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


def expected_seconds(run: Run, rounds: int) -> float:
    """Return how many seconds the run takes from its first launch until it has ``rounds`` rounds.

    It goes on at the pace so far, which includes the time of discarded rounds. The run must have a launch.
    """
    attempts = len([*run.launches, *run.discarded]) / len(run.config.arms)
    elapsed = elapsed_seconds(run)
    return elapsed + elapsed / attempts * max(0, rounds - rounds_done(run))


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
