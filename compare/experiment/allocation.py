"""Choose the hosts of a run, and the engine that reaches them.

The first source that has hosts counts: the user's own choice, then a job of Slurm, then a job of a scheduler
in ``launch/engines/schedulers.py``, then this machine. Within a job that may have several hosts, a run uses
only this machine if the user asks for that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from compare.errors import AllocationError, BudgetError, HostError, LaunchError, UsageError
from compare.experiment.settle import choose_all_hosts, choose_hosts
from compare.launch.engines import Allocation, ScheduledJob
from compare.launch.engines.detect import find_job, name_job, require_started_once
from compare.launch.engines.local import Local
from compare.launch.engines.slurm import carrier_of
from compare.launch.engines.slurm_job import is_named, read_job
from compare.launch.engines.ssh import Ssh
from compare.launch.signals import uninterrupted
from compare.schema.hosts import Host, is_local, listed, local_host, shown
from compare.text import duration

ENGINES = ("auto", "local", "ssh", "slurm")
_ALONE = (local_host(1),)
_NO_JOB = "this machine, as none are named and no scheduler's job was found"


def choose_allocation(
    engine: str,
    hostfile: Path | None,
    ranks: int | None,
    *,
    ssh: Ssh,
    named: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Allocation:
    """Return the hosts of a run, each with as many slots as it gets ranks, and how to reach them.

    Raises:
        UsageError: the hosts are not valid, or the engine cannot reach them.
        UnavailableError: Slurm does not answer.
    """
    found = find_allocation(engine, hostfile, named, ssh=ssh, environ=environ)
    if found.hosts == _ALONE:
        return found._replace(hosts=choose_hosts(None, ranks, include=include, exclude=exclude))
    hosts = choose_hosts(None, ranks, include=include, exclude=exclude, given=found.hosts)
    return found._replace(hosts=hosts, source=f"{len(hosts)} of {found.source}")


def find_allocation(
    engine: str,
    hostfile: Path | None,
    named: str | None,
    *,
    ssh: Ssh,
    environ: Mapping[str, str] = os.environ,
) -> Allocation:
    """Return all hosts that a run could use, with all their slots, and how to reach them.

    Raises:
        UsageError, UnavailableError: see ``choose_allocation``.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine cannot be {engine!r}.", remedy=f"Use one of: {', '.join(ENGINES)}.")
    require_started_once(environ)
    asked = choose_all_hosts(hostfile, named) if hostfile or named is not None else ()
    whose = shown(str(hostfile or "-H"))
    in_slurm = is_named(environ)
    if engine == "local":
        return _of_this_machine(asked, whose, environ)
    if engine == "slurm" or (engine == "auto" and not asked and in_slurm):
        return _of_slurm(asked, whose, environ)
    if asked:
        return Allocation(asked, ssh, whose)
    if in_slurm:
        job = read_job(environ)
        return Allocation(job.hosts, ssh, job.name, job)
    return _of_a_job(engine, ssh, environ)


def _of_a_job(engine: str, ssh: Ssh, environ: Mapping[str, str]) -> Allocation:
    """Return the hosts of a scheduler's job other than Slurm's; without a job, this machine.

    Raises:
        UsageError: the job's hosts are not known, or ``--engine ssh`` has no hosts to reach.
    """
    found = find_job(environ)
    if found and found.hosts:
        return Allocation(found.hosts, ssh, f"{found.name}, from {found.source}")
    if found and not found.alone:
        raise found.refusal()
    if engine == "ssh":
        raise UsageError("--engine ssh needs hosts.", remedy="Name them with --hostfile or -H.")
    source = f"this machine, the only host of {found.name} ({found.signs})" if found else _NO_JOB
    return Allocation(_ALONE, Local(), source)


def _of_this_machine(asked: Sequence[Host], whose: str, environ: Mapping[str, str]) -> Allocation:
    if others := [host for host in asked if not is_local(host)]:
        raise UsageError(
            f"--engine local and {others[0].source} contradict each other.",
            found=f"{others[0].name} is another machine.",
            remedy="Leave out one of them.",
        )
    if asked:
        return Allocation(tuple(asked), Local(), whose)
    name = "a job of Slurm" if is_named(environ) else name_job(environ)
    source = "this machine alone (--engine local)"
    return Allocation(_ALONE, Local(), f"{source}, within {name}" if name else source)


def _of_slurm(asked: Sequence[Host], whose: str, environ: Mapping[str, str]) -> Allocation:
    if not is_named(environ):
        raise UsageError(
            "--engine slurm needs a job of Slurm.",
            found="SLURM_JOB_ID is not set.",
            remedy="Start it within salloc or sbatch, or send it off: compare submit --engine slurm -- run …",
        )
    job = read_job(environ)
    if strangers := [host for host in asked if host.name not in job.cpus]:
        raise UsageError(
            f"{strangers[0].source}: {strangers[0].name} is no node of {job.name}.",
            found=listed(job.hosts),
            remedy="Name nodes of the job, or leave the hosts out.",
        )
    source = f"{job.name}, from {whose}" if asked else job.name
    return Allocation(tuple(asked) or job.hosts, carrier_of(job.number, environ), source, job)


@contextmanager
def endings_named(job: ScheduledJob | None) -> Iterator[None]:
    """Raise an error that names the scheduler, if the end of its job is why the block failed.

    Raises:
        AllocationError: the scheduler ended the job. This error takes the place of a lost host, a failed
            launch or an interrupt, and keeps the notes.
    """
    try:
        yield
    except AllocationError:
        raise
    except (HostError, LaunchError, KeyboardInterrupt) as error:
        with uninterrupted():
            ended = job.why_it_ended() if job else None
        if ended is None:
            raise
        for note in getattr(error, "__notes__", ()):
            ended.add_note(note)
        raise ended from error


def time_of(job: ScheduledJob | None) -> float:
    """Return the Unix time after which nothing may be measured; infinity without a job."""
    return job.ends_at if job else math.inf


def require_time(job: ScheduledJob | None, noun: str, least_seconds: float, now: float) -> None:
    """Require that every arm or group can run once before the job ends.

    ``noun`` is ``arm`` or ``group``, and ``least_seconds`` the minimum time for one launch of each. ``now``
    is a Unix time. Without a job nothing is required.

    Raises:
        BudgetError: the job ends earlier.
    """
    if job and (left := job.ends_at - now) < least_seconds:
        raise BudgetError(
            f"{job.name} ends before every {noun} can run once.",
            found=f"One launch of each takes {duration(least_seconds)} or more. "
            f"Until one minute before its end, the job has {duration(max(0.0, left))}.",
            remedy=f"Ask for a longer --time, or name fewer {noun}s.",
        )


def too_little_time(limit: str, noun: str, done: int, planned: int) -> BudgetError:
    """Return the error of a time limit that ended before every arm or group had run once.

    ``noun`` is ``arm`` or ``group``. ``done`` of the ``planned`` ones had run by then.
    """
    return BudgetError(
        f"{limit} ended before every {noun} had run once.",
        found=f"{done} of {planned} had." if done else "None had.",
        remedy=f"Give it longer, name fewer {noun}s, or let each do less.",
    )
