"""Choose the hosts of a run, and the engine that reaches them.

The first source that there is counts. The user's own hosts come first, then the job of Slurm. The hostfiles
of Kubernetes' MPIJob, of PBS and of LSF follow, and this machine is last. Within an allocation a run takes
this machine alone only if told so.
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
from compare.launch.engines.local import Local
from compare.launch.engines.slurm import carrier_of
from compare.launch.engines.slurm_job import read_job, require_one_task
from compare.launch.engines.ssh import Ssh
from compare.launch.signals import uninterrupted
from compare.schema.hostfile import read_hostfile
from compare.schema.hosts import Host, is_local, listed, local_host
from compare.text import duration

ENGINES = ("auto", "local", "ssh", "slurm")
_MPIJOB_HOSTFILE = Path("/etc/mpi/hostfile")


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
    """Choose the hosts, each with as many slots as it gets ranks.

    Raises:
        UsageError: the hosts are wrong, or the engine cannot reach them.
        UnavailableError: Slurm does not answer.
    """
    found = find_allocation(engine, hostfile, named, ssh=ssh, environ=environ)
    given = () if found.hosts == (local_host(1),) else found.hosts
    hosts = choose_hosts(None, ranks, include=include, exclude=exclude, given=given)
    source = found.source and f"{len(hosts)} of {found.source}"
    return found._replace(hosts=hosts, source=source)


def find_allocation(
    engine: str,
    hostfile: Path | None,
    named: str | None,
    *,
    ssh: Ssh,
    environ: Mapping[str, str] = os.environ,
) -> Allocation:
    """Find all hosts that there are, with all their slots.

    Raises:
        UsageError, UnavailableError: see ``choose_allocation``.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine cannot be {engine!r}.", remedy=f"Use one of: {', '.join(ENGINES)}.")
    require_one_task(environ)
    asked = choose_all_hosts(hostfile, named) if hostfile or named is not None else ()
    whose = str(hostfile or "-H") if asked else ""
    if engine == "local":
        return _of_this_machine(asked, environ)
    if engine == "slurm" or (engine == "auto" and not asked and "SLURM_JOB_ID" in environ):
        return _of_slurm(asked, environ)
    if not asked and engine == "ssh" and "SLURM_JOB_ID" in environ:
        job = read_job(environ)
        return Allocation(job.hosts, ssh, job.name, job)
    if not asked and (found := _hostfile_of(environ)):
        path, whose = found
        asked = read_hostfile(path)
    if asked:
        return Allocation(asked, ssh, whose)
    if engine == "ssh":
        raise UsageError("--engine ssh needs hosts.", remedy="Name them with --hostfile or -H.")
    number = environ.get("PBS_JOBID") or environ.get("LSB_JOBID") or ""
    alone = number and f"job {number}, which names no hostfile: this machine alone"
    return Allocation((local_host(1),), Local(), alone)


def _of_this_machine(asked: Sequence[Host], environ: Mapping[str, str]) -> Allocation:
    if others := [host for host in asked if not is_local(host)]:
        raise UsageError(
            f"--engine local and {others[0].source} contradict each other.",
            found=f"{others[0].name} is another machine.",
            remedy="Leave out one of them.",
        )
    within = "SLURM_JOB_ID" in environ or _hostfile_of(environ)
    source = "a larger allocation, this machine alone (--engine local)" if within else ""
    return Allocation(tuple(asked) or (local_host(1),), Local(), source)


def _of_slurm(asked: Sequence[Host], environ: Mapping[str, str]) -> Allocation:
    if "SLURM_JOB_ID" not in environ:
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
    return Allocation(tuple(asked) or job.hosts, carrier_of(job.number, environ), job.name, job)


def _hostfile_of(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the hostfile that a scheduler wrote, and whose it is."""
    named = environ.get("OMPI_MCA_orte_default_hostfile", "")
    if named and environ.get("K_MPI_JOB_ROLE") == "launcher":
        return named, "the MPIJob"
    if _MPIJOB_HOSTFILE.exists():
        return str(_MPIJOB_HOSTFILE), "the MPIJob"
    if path := environ.get("PBS_NODEFILE"):
        return path, f"PBS job {environ.get('PBS_JOBID', '')}".strip()
    if path := environ.get("LSB_DJOB_HOSTFILE"):
        return path, f"LSF job {environ.get('LSB_JOBID', '')}".strip()
    return None


@contextmanager
def endings_named(job: ScheduledJob | None) -> Iterator[None]:
    """Name the scheduler as the cause of what it ended.

    Raises:
        AllocationError: it ended the job; in place of a lost host, a failed launch or an interrupt.
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
    """Return the Unix time after which nothing may be measured."""
    return job.ends_at if job else math.inf


def require_time(job: ScheduledJob | None, noun: str, least_seconds: float, now: float) -> None:
    """Require that all can run once before the job ends.

    ``noun`` is arm or group, and ``least_seconds`` the least time of one launch of each.

    Raises:
        BudgetError: it cannot.
    """
    if job and (left := job.ends_at - now) < least_seconds:
        raise BudgetError(
            f"{job.name} ends before every {noun} can run once.",
            found=f"One launch of each takes {duration(least_seconds)} or more. "
            f"Until one minute before its end, the job has {duration(max(0.0, left))}.",
            remedy=f"Ask for a longer --time, or name fewer {noun}s.",
        )


def too_little_time(limit: str, noun: str, done: int, planned: int) -> BudgetError:
    """Return the error of a budget that ended too early.

    ``done`` counts what had run once, of all that was ``planned``.
    """
    return BudgetError(
        f"{limit} ended before every {noun} had run once.",
        found=f"{done} of {planned} had." if done else "None had.",
        remedy=f"Give it longer, name fewer {noun}s, or let each do less.",
    )
