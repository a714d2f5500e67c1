"""Choose the hosts of a run, and how to reach them.

The first source that has hosts counts: the user's own choice, then the scheduler's job that an engine of
``launch/engines/detect.py`` finds, then this machine. Within a job that may have several hosts, a run uses
only this machine if the user asks for that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from compare.errors import AllocationError, BudgetError, HostError, LaunchError, UsageError
from compare.launch.engines import Allocation, Carrier, ScheduledJob, slurm
from compare.launch.engines.detect import ENGINES, require_started_once
from compare.launch.engines.ssh import Ssh
from compare.launch.signals import uninterrupted
from compare.schema.hostfile import parse_hosts, read_hostfile, select
from compare.schema.hosts import Host, fill_slots, is_local, listed_hosts, local_host, printable_line
from compare.system.clock import unix_time
from compare.text import duration

DEFAULT_RANKS = 2
"""Number of ranks if the user names neither ranks nor hosts, and no scheduler does."""
_ONLY_THIS_MACHINE = (local_host(1),)


def choose_allocation(
    found: Allocation, ranks: int | None, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Allocation:
    """Return the hosts of a run, chosen among those that were ``found``, with as many slots as ranks.

    Without ``ranks`` every slot is filled. If neither the user nor a scheduler names hosts, this machine
    takes all ranks.

    Raises:
        UsageError: the slots are fewer than ``ranks``, this machine is named twice, or there are no hosts
            from which ``include`` and ``exclude`` could choose.
    """
    if found.hosts == _ONLY_THIS_MACHINE:
        if include or exclude:
            raise UsageError(
                "--include and --exclude choose among hosts, and none are named.",
                remedy="Name hosts with --hostfile or -H.",
            )
        return found._replace(hosts=(local_host(ranks or DEFAULT_RANKS),))
    hosts = select(found.hosts, include, exclude)
    here = [host for host in hosts if is_local(host)]
    if len(here) > 1:
        raise UsageError(
            f"{here[1].source}: this machine is named twice, as {here[0].name} and as {here[1].name}.",
            remedy="Name it once, with all its slots.",
        )
    if len(hosts) == 1 and here:
        # Launchers know this machine by one name only: mpirun takes neither ::1 nor 127.0.0.9.
        hosts = (msgspec.structs.replace(here[0], name="localhost"),)
    hosts = fill_slots(hosts, ranks)
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

    ``engine`` is the choice of ``--engine``, and ``named`` the text of ``-H``.

    Raises:
        UsageError: the hosts are not valid, or the engine cannot reach them.
        UnavailableError: Slurm does not answer.
    """
    require_started_once(environ)
    if hostfile and named is not None:
        raise UsageError("--hostfile and -H both name hosts.", remedy="Use only one of them.")
    asked = () if named is None else parse_hosts(named)
    if hostfile:
        asked = read_hostfile(hostfile)
    source = printable_line(str(hostfile or "-H"))
    if engine == "local":
        return _allocate_this_machine(asked, source)
    if engine == "slurm":
        return _allocate_slurm_nodes(asked, source, environ)
    if asked:
        return Allocation(asked, ssh, source)
    found = next((allocation for detect in ENGINES if (allocation := detect(environ))), None)
    if engine == "ssh" and (found is None or found.hosts == _ONLY_THIS_MACHINE):
        raise UsageError("--engine ssh needs hosts.", remedy="Name them with --hostfile or -H.")
    if found is None:
        source = "this machine, because no hosts are named and no scheduler's job was found"
        return Allocation(_ONLY_THIS_MACHINE, Carrier(), source)
    by_ssh = engine == "ssh" or isinstance(found.carrier, Ssh)
    return found._replace(carrier=ssh) if by_ssh else found


def _allocate_this_machine(asked: tuple[Host, ...], source: str) -> Allocation:
    """Return the allocation of ``--engine local``; a ``UsageError`` if ``asked`` has another machine."""
    if other_machines := [host for host in asked if not is_local(host)]:
        raise UsageError(
            f"--engine local and {other_machines[0].source} contradict each other.",
            found=f"{other_machines[0].name} is another machine.",
            remedy="Leave out one of them.",
        )
    source = source if asked else "this machine alone (--engine local)"
    return Allocation(asked or _ONLY_THIS_MACHINE, Carrier(), source)


def _allocate_slurm_nodes(asked: tuple[Host, ...], source: str, environ: Mapping[str, str]) -> Allocation:
    """Return the nodes of the Slurm job, or those that were ``asked`` for; a ``UsageError`` without a job."""
    found = slurm.detect(environ)
    if found is None:
        raise UsageError(
            "--engine slurm works only within a Slurm job.",
            found="SLURM_JOB_ID is not set.",
            remedy="Run the command within salloc or sbatch, or submit it: ringside submit --engine slurm -- "
            "run …",
        )
    names = {host.name for host in found.hosts}
    if strangers := [host for host in asked if host.name not in names]:
        raise UsageError(
            f"{strangers[0].source}: {strangers[0].name} is not a node of {found.source}.",
            found=listed_hosts(found.hosts),
            remedy="Name only nodes of the job, or leave the hosts out.",
        )
    return found._replace(hosts=asked, source=f"{found.source}, from {source}") if asked else found


@contextmanager
def naming_scheduler(job: ScheduledJob | None) -> Iterator[None]:
    """If the block fails because the scheduler ended its job, raise an error that says so.

    Raises:
        AllocationError: the scheduler ended the job. This error takes the place of that of a lost host, a
            failed launch or an interrupt, and keeps its notes.
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


def end_of_job(job: ScheduledJob | None) -> float:
    """Return the Unix time after which nothing may be measured; infinity without a job or a limit."""
    return job.ends_at if job else math.inf


def require_time(job: ScheduledJob | None, noun: str, least_seconds: float) -> None:
    """Require that every arm or group can run once before the job ends.

    ``noun`` is ``arm`` or ``group``, and ``least_seconds`` the minimum time for one launch of each. Without a
    job nothing is required.

    Raises:
        BudgetError: the job ends earlier.
    """
    if job and (left := job.ends_at - unix_time()) < least_seconds:
        raise BudgetError(
            f"{job.name} ends before every {noun} can run once.",
            found=f"One launch of each takes {duration(least_seconds)} or more. "
            f"The job has {duration(max(0.0, left))} left, not counting its last minute.",
            remedy=f"Ask Slurm for a longer time limit, or name fewer {noun}s.",
        )


def too_little_time(limit: str, noun: str, done: int, planned: int) -> BudgetError:
    """Return the error of a time limit that ended before every arm or group had run once.

    ``limit`` names the time limit, and ``noun`` is ``arm`` or ``group``. ``done`` of the ``planned`` ones had
    run by then.
    """
    return BudgetError(
        f"{limit} ran out before every {noun} had run once.",
        found=f"{done} of {planned} {noun}s had run by then." if done else f"No {noun} had run by then.",
        remedy=f"Allow more time, name fewer {noun}s, or give each {noun} less work.",
    )
