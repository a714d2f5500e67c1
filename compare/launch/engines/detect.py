"""Find the scheduler or the launcher that started this program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from compare.errors import UsageError
from compare.launch.engines.schedulers import SCHEDULERS, STARTERS, Reader, Scheduler, of_file
from compare.schema.hostfile import format_hosts
from compare.schema.hosts import Host, shown

LOCAL = "take this machine alone: --engine local"
"""Part of a remedy: what a user can do in every job."""
ELSEWHERE = f"Name the hosts with -H or --hostfile, or {LOCAL}"

_COUNTS = ("SIZE", "TASKS", "PROCS", "NRANKS")
"""Endings of the names of variables that hold a launcher's number of ranks."""
_LAUNCH_NODE = re.compile(r"batch|launch|login", re.IGNORECASE)


class Found(NamedTuple):
    """The job that this program runs in."""

    name: str
    """The job's name in messages, as ``Grid Engine job 7``."""
    signs: str
    """The variables that show the job, with their values, as text for messages."""
    hint: str = ""
    hosts: tuple[Host, ...] = ()
    """The hosts of the job; empty if they are not known."""
    source: str = ""
    """The variable, or the file, that names the hosts; empty if they are not known."""
    alone: bool = False
    """Whether this machine is the job's only host."""

    def refusal(self) -> UsageError:
        """Return the error of a job whose hosts are not known."""
        return UsageError(
            f"This is {self.name}, and Ringside does not know its hosts.",
            found=" ".join(filter(None, [f"{self.signs}.", self.hint])),
            remedy=ELSEWHERE,
        )


def require_started_once(environ: Mapping[str, str]) -> None:
    """Require that no launcher started this program several times.

    Raises:
        UsageError: a launcher did, and each program would start all ranks.
    """
    for starter in STARTERS:
        signs = _signs_of(starter.signs, environ)
        if not signs or _signs_of(starter.unless, environ):
            continue
        count = next((value for name, value in signs.items() if name.endswith(_COUNTS)), "")
        once = f", or start it once: {starter.once}" if starter.once else ""
        raise UsageError(
            f"{starter.name} starts compare {f'{int(count)} times' if count else 'many times'}, "
            "and each would start all ranks.",
            found=f"{_written(signs)}.",
            remedy=f"Call compare without it: every command that launches ranks starts them itself{once}",
        )


def find_job(environ: Mapping[str, str]) -> Found | None:
    """Return the scheduler's job that this program runs in; None outside any job.

    If the environment shows several jobs, one whose hosts are known is preferred. A Slurm job with a number
    is not found by this function, but by ``slurm_job.read_job``.

    Raises:
        UsageError: the job's hosts cannot be read, or the first may take no ranks.
    """
    first: Found | None = None
    for scheduler, signs in _shown(environ):
        found = _look(scheduler, signs, environ)
        if found.hosts:
            return found
        first = first or found
    return first


def name_job(environ: Mapping[str, str]) -> str:
    """Return the name of the job that this program runs in; empty outside any job.

    The hosts of the job are not read, so no error is raised.
    """
    return next((_name(scheduler, environ) for scheduler, _ in _shown(environ)), "")


def _shown(environ: Mapping[str, str]) -> Iterator[tuple[Scheduler, dict[str, str]]]:
    """Yield the schedulers whose jobs the environment shows, with the variables that show them."""
    for scheduler in SCHEDULERS:
        signs = _signs_of(scheduler.signs, environ)
        if scheduler.file and Path(scheduler.file).exists():
            signs[scheduler.file] = "exists"
        if signs:
            yield scheduler, signs


def _name(scheduler: Scheduler, environ: Mapping[str, str]) -> str:
    number = environ.get(scheduler.number, "")
    if number:
        return f"{scheduler.name} job {shown(number)}"
    return scheduler.name if scheduler.name.startswith("the ") else f"a job of {scheduler.name}"


def _look(scheduler: Scheduler, signs: Mapping[str, str], environ: Mapping[str, str]) -> Found:
    found = Found(_name(scheduler, environ), _written(signs), scheduler.hint)
    for variable, read in scheduler.hosts:
        if value := environ.get(variable):
            return found._replace(hosts=_read(read, value, variable, found, scheduler), source=variable)
    if scheduler.file and scheduler.file in signs:
        hosts = _read(of_file, scheduler.file, scheduler.file, found, scheduler)
        return found._replace(hosts=hosts, source=scheduler.file)
    one = _signs_of(scheduler.one, environ)
    return found._replace(alone=True, signs=_written(one)) if one else found


def _read(read: Reader, value: str, variable: str, job: Found, scheduler: Scheduler) -> tuple[Host, ...]:
    """Return the hosts that a variable or a file of a job names.

    Raises:
        UsageError: the hosts cannot be read, or the first may take no ranks.
    """
    try:
        hosts = read(value, variable)
    except (UsageError, ValueError) as error:
        found = str(error) if isinstance(error, UsageError) else shown(value)
        what = f"{variable} does not name the hosts of {job.name} in a form that Ringside knows."
        raise UsageError(what, found="\n".join(found.split("\n")[:2]), remedy=ELSEWHERE) from None
    if scheduler.launch_node and _begins_with_a_launch_node(hosts):
        with_it, without = format_hosts(hosts), format_hosts(hosts[1:])
        raise UsageError(
            f"The first host of {job.name}, {hosts[0].name}, may be its launch node, which takes no ranks.",
            found=f"{variable} gives it {hosts[0].slots}, and {hosts[1].name} {hosts[1].slots}.",
            remedy=f"Without it: -H {without}; with it: -H {with_it}; or {LOCAL}",
        )
    return hosts


def _begins_with_a_launch_node(hosts: tuple[Host, ...]) -> bool:
    """Return whether the first host looks like a launch node.

    It does if its name alone begins with batch, launch or login, or if it alone has a single slot.
    """
    first, others = hosts[0], hosts[1:]
    named = _LAUNCH_NODE.match(first.name) and not any(_LAUNCH_NODE.match(host.name) for host in others)
    return bool(others) and (bool(named) or (first.slots == 1 and all(host.slots > 1 for host in others)))


def _signs_of(signs: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the first sign that matches, with their values; empty if none does."""
    for sign in signs:
        parts = [part.partition("=")[::2] for part in re.split(r" (?=[A-Z_]+=)", sign)]
        if all(re.fullmatch(value, environ.get(name, ""), re.DOTALL) for name, value in parts):
            return {name: environ[name] for name, _ in parts}
    return {}


def _written(signs: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {value}" if "/" in name else f"{name}={shown(value)}" for name, value in signs.items()
    )
