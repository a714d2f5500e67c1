"""Choose the hosts of a run, and how to reach them.

The first source that has hosts counts: the user's own choice, then the scheduler's job that an engine of
``launch/engines/detect.py`` finds, then this machine. Within a job that may have several hosts, a run uses
only this machine if the user asks for that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from compare.errors import (
    AllocationError,
    BudgetError,
    HostError,
    LaunchError,
    UnavailableError,
    UsageError,
)
from compare.launch.engines import Allocation, Carrier, ScheduledJob, rehearsal, slurm
from compare.launch.engines.detect import ENGINES, OPTIONS, require_started_once
from compare.launch.engines.slurm import Slurm
from compare.launch.engines.ssh import Ssh
from compare.launch.signals import uninterrupted
from compare.schema.hostfile import LEFT_OUT, names_any, parse_hosts, read_hostfile, select
from compare.schema.hosts import fill_slots, is_local, listed_hosts, local_host, printable_line
from compare.system.clock import unix_time
from compare.text import duration

DEFAULT_RANKS = 2
"""Number of ranks if the user names neither ranks nor hosts, and no scheduler does."""
_ONLY_THIS_MACHINE = (local_host(1),)


def choose_allocation(found: Allocation, ranks: int | None) -> Allocation:
    """Return the hosts of a run, chosen among those that were ``found``, with as many slots as ranks.

    Without ``ranks`` every slot is filled. If neither the user nor a scheduler names hosts, this machine
    takes all ranks.

    Raises:
        UsageError: the slots are fewer than ``ranks``, or this machine is named twice.
    """
    hosts = found.hosts
    if hosts == _ONLY_THIS_MACHINE:
        return found._replace(hosts=(local_host(ranks or DEFAULT_RANKS),))
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
    options: Mapping[str, Any],
    hostfile: Path | None,
    named: str | None,
    *,
    with_gpus: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Allocation:
    """Return all hosts that a run could use, with all their slots, and how to reach them.

    ``engine`` is the choice of ``--engine`` with its ``options``, and ``named`` the text of ``-H``. The
    latter chooses among the hosts of the hostfile or of a job if it names one of these. ``with_gpus`` says
    whether ranks will compute on GPUs, because rehearsed hosts see none otherwise.

    Raises:
        UsageError: the hosts are not valid, the engine cannot reach them, or an option has no effect.
        UnavailableError: Slurm does not answer.
    """
    require_started_once(environ)
    if engine == "rehearsal":
        if hostfile or named is not None:
            raise UsageError(
                "A rehearsal makes its own hosts.",
                found=f"{'--hostfile' if hostfile else '-H'} is meant for other hosts.",
                remedy="Leave it out, and set the number of hosts: --engine rehearsal:hosts=4",
            )
        return rehearsal.allocate(options, with_gpus=with_gpus)
    listed = _listed_hosts(hostfile)
    found = listed
    if engine == "slurm":
        found = _allocate_slurm_nodes(listed, environ)
    elif listed is None and engine != "local":
        found = _find_job(named, environ)
    if named is not None:
        found = _choose_named(found, named, must_be_among=listed is not None or engine == "slurm")
    if engine == "local":
        found = _allocate_this_machine(found)
    elif engine == "ssh" and (found is None or found.hosts == _ONLY_THIS_MACHINE):
        raise UsageError("--engine ssh needs hosts.", remedy="Name them with --hostfile or -H.")
    if found is None:
        source = "this machine, because no hosts are named and no scheduler's job was found"
        found = Allocation(_ONLY_THIS_MACHINE, Carrier(), source)
    return _with_options(found, engine, options)


def _listed_hosts(hostfile: Path | None) -> Allocation | None:
    """Return the allocation of a hostfile's hosts; None without a file."""
    return Allocation(read_hostfile(hostfile), Ssh(), printable_line(str(hostfile))) if hostfile else None


def _find_job(named: str | None, environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of the job that an engine finds; None outside of one.

    If ``named``, the text of ``-H``, names hosts, a job whose hosts are not known counts as none.
    """
    try:
        return next((allocation for detect in ENGINES if (allocation := detect(environ))), None)
    except (UnavailableError, UsageError):
        if named is None or LEFT_OUT in named:
            raise
        return None


def _choose_named(found: Allocation | None, named: str, *, must_be_among: bool) -> Allocation:
    """Return the hosts that ``-H`` names: those of ``found`` if it names one of them, or else its own.

    A ``UsageError`` says that the text is wrong, or that it names other hosts although they ``must_be_among``
    those that were found.
    """
    has_hosts = found is not None and found.hosts != _ONLY_THIS_MACHINE
    if found and has_hosts and (must_be_among or names_any(found.hosts, named)):
        return found._replace(hosts=select(found.hosts, named))
    if LEFT_OUT in named:
        raise UsageError(
            f"-H {printable_line(named)} leaves hosts out, and none are named.",
            remedy="Name all hosts with --hostfile, or only those to use with -H.",
        )
    return Allocation(parse_hosts(named), Ssh(), "-H")


def _allocate_this_machine(found: Allocation | None) -> Allocation:
    """Return the allocation of ``--engine local``; a ``UsageError`` if another machine was named."""
    if found is None:
        return Allocation(_ONLY_THIS_MACHINE, Carrier(), "this machine alone (--engine local)")
    if other_machines := [host for host in found.hosts if not is_local(host)]:
        raise UsageError(
            f"--engine local and {other_machines[0].source} contradict each other.",
            found=f"{other_machines[0].name} is another machine.",
            remedy="Leave out one of them.",
        )
    return found._replace(carrier=Carrier())


def _allocate_slurm_nodes(listed: Allocation | None, environ: Mapping[str, str]) -> Allocation:
    """Return the nodes of the Slurm job, or those that are ``listed``; a ``UsageError`` without a job."""
    found = slurm.detect(environ)
    if found is None:
        raise UsageError(
            "--engine slurm works only within a Slurm job.",
            found="SLURM_JOB_ID is not set.",
            remedy="Run the command within salloc or sbatch, or submit it: ringside submit --engine slurm -- "
            "run …",
        )
    if listed is None:
        return found
    names = {host.name for host in found.hosts}
    if strangers := [host for host in listed.hosts if host.name not in names]:
        raise UsageError(
            f"{strangers[0].source}: {strangers[0].name} is not a node of {found.source}.",
            found=listed_hosts(found.hosts),
            remedy="Name only nodes of the job, or leave the hosts out.",
        )
    return found._replace(hosts=listed.hosts, source=f"{found.source}, from {listed.source}")


def _with_options(found: Allocation, engine: str, options: Mapping[str, Any]) -> Allocation:
    """Return the allocation with the options of its engine; a ``UsageError`` if one has no effect there."""
    carrier = found.carrier
    if engine == "ssh":
        carrier = Ssh()
    reached_by = "ssh" if isinstance(carrier, Ssh) else "slurm" if isinstance(carrier, Slurm) else "local"
    if useless := next((name for name in options if name not in OPTIONS[reached_by]), None):
        raise UsageError(
            f"--engine {engine}: {useless} has no effect here.",
            found=f"The hosts are reached by {reached_by}: {found.source}.",
            remedy=f"Leave it out. The options of {reached_by} are {', '.join(OPTIONS[reached_by])}.",
        )
    if isinstance(carrier, Ssh):
        given = {name: options[name] for name in ("user", "port", "identity") if name in options}
        carrier = msgspec.structs.replace(carrier, **given)
    return found._replace(
        carrier=carrier, interface=options.get("interface"), wait_seconds=options.get("wait", 0.0)
    )


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
