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
"""The way out of every job, for remedies."""
ELSEWHERE = f"Name the hosts with -H or --hostfile, or {LOCAL}"

_COUNTS = ("SIZE", "TASKS", "PROCS", "NRANKS")
"""How names of variables end that count a launcher's ranks."""
_LAUNCH_NODE = re.compile(r"batch|launch|login", re.IGNORECASE)


class Found(NamedTuple):
    """The job that this program runs in."""

    name: str
    """As ``Grid Engine job 7``."""
    signs: str
    """The variables that show it, with their values."""
    hint: str = ""
    hosts: tuple[Host, ...] = ()
    """Empty where they are not known."""
    source: str = ""
    """The variable that names the hosts."""
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
        UsageError: one did, and each program would start all ranks.
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
    """Find the job of a scheduler that this program runs in.

    A job whose hosts are known is preferred. Slurm's own jobs are asked for elsewhere.

    Raises:
        UsageError: its hosts cannot be read, or the first may take no ranks.
    """
    first: Found | None = None
    for scheduler, signs in _shown(environ):
        found = _look(scheduler, signs, environ)
        if found.hosts:
            return found
        first = first or found
    return first


def name_job(environ: Mapping[str, str]) -> str:
    """Return the name of the job around this program, or nothing.

    Its hosts are not read.
    """
    return next((_name(scheduler, environ) for scheduler, _ in _shown(environ)), "")


def _shown(environ: Mapping[str, str]) -> Iterator[tuple[Scheduler, dict[str, str]]]:
    """Return the schedulers whose jobs have these variables, with the signs."""
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
    """Read the hosts of a job.

    Raises:
        UsageError: they cannot be read, or the first may take no ranks.
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
    """Return whether the first host looks like a launch node."""
    first, others = hosts[0], hosts[1:]
    named = _LAUNCH_NODE.match(first.name) and not any(_LAUNCH_NODE.match(host.name) for host in others)
    return bool(others) and (bool(named) or (first.slots == 1 and all(host.slots > 1 for host in others)))


def _signs_of(signs: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the first sign that is there."""
    for sign in signs:
        parts = [part.partition("=")[::2] for part in re.split(r" (?=[A-Z_]+=)", sign)]
        if all(re.fullmatch(value, environ.get(name, ""), re.DOTALL) for name, value in parts):
            return {name: environ[name] for name, _ in parts}
    return {}


def _written(signs: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {value}" if "/" in name else f"{name}={shown(value)}" for name, value in signs.items()
    )
