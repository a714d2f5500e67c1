"""Find the hosts of a run and reach them, with one module for each way to do so.

An engine is a module that declares its options of ``--engine`` as ``OPTIONS``. One that finds the
``Allocation`` of the job in which this program runs has a function ``detect`` for that. ``detect.py`` has the
lists of both. An allocation says which hosts a run has, how many
ranks each takes, and which ``Carrier`` starts a process on a host. The rest is the same for every engine:
``commands`` runs a command on many hosts, and ``agent`` runs launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import msgspec

from compare.errors import AllocationError, HostError
from compare.schema.hosts import Host, Link, is_local
from compare.text import printable, seconds_of

STREAM_BYTES = 1 << 20
"""Maximum size of what a command on a host may print to standard output, and to standard error."""
REMOTE_SHELL = "ssh"
"""The program that mpirun and horovodrun call to start a process on a host."""
LOCAL_REMEDY = "use only this machine: --engine local"
"""The part of a remedy that says what a user can do in every job."""
HOSTS_REMEDY = f"Name the hosts with -H or --hostfile, or {LOCAL_REMEDY}"
"""The remedy where a job's hosts are not known."""

Options: TypeAlias = Mapping[str, Callable[[str], Any]]
"""Options of an engine by name, each with a function that reads it or raises a ``ValueError``."""

_LAST_LINES = 3
_STAND_IN = """\
#!/bin/sh
# Starts a process where mpirun and horovodrun call ssh. Their options of ssh, on either side of the host,
# are dropped: this program has the right ones.
host=
while [ $# -gt 0 ]; do
  case $1 in
    -[BbcDEeFIiJLlmOopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) [ -z "$host" ] || break; host=$1; shift ;;
  esac
done
"""


class AbsentHostError(HostError):
    """The error of a host that cannot be reached now, perhaps because it is starting."""


class Answer(NamedTuple):
    """The outcome of a command on a host."""

    host: Host
    status: int | None
    """Exit status of the command, or of ssh or srun if that failed; None if the command was ended."""
    stdout: bytes
    stderr: bytes
    seconds: float
    """How long the command ran, or how long a lost agent was silent."""
    started_at: float = 0.0
    """Unix time of this machine at which the command was started."""
    flooded: str = ""
    """The stream (stdout or stderr) with more than ``STREAM_BYTES``; empty if neither has more."""
    ran_here: bool = False
    """Whether the command was executed on this machine, without a program such as ssh.

    ``is_local`` may say something else later, when the name of a pod begins to resolve.
    """

    @property
    def last_lines(self) -> str:
        """The last three lines of stderr that are not blank and not rules, made safe for a terminal."""
        text = self.stderr.decode(errors="replace")
        lines = [printable(line).strip() for line in text.splitlines() if line.strip("@ \r\n")]
        return "\n".join(lines[-_LAST_LINES:])


class Carrier(msgspec.Struct, frozen=True):
    """A way to start processes on hosts, such as ssh.

    This class reaches only this machine, where every process is a child process. A subclass reaches other
    hosts, mostly by overriding the private methods, which are called only for hosts other than this machine.
    """

    def argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that executes ``argv`` on a host; for this machine, ``argv`` itself.

        The command is executed on this machine, and its pipes are those of the process on the host.

        Raises:
            UnavailableError: the program that reaches hosts is not installed.
        """
        return tuple(argv) if is_local(host) else self._argv(host, argv)

    def by_hand(self, host: Host) -> str:
        """Return a command with which a user can test a host by hand; empty for this machine."""
        return "" if is_local(host) else self._by_hand(host)

    def explain(self, answer: Answer) -> HostError | None:
        """Return the error of a host that was not reached; None if it was, even if the command failed."""
        return explain_signal(answer) if answer.ran_here else self._explain(answer)

    def remote_shell(self, hosts: Sequence[Host]) -> str:
        """Return the text of the program with which mpirun and horovodrun start ranks on hosts.

        Both call the program by the name ``REMOTE_SHELL``, so the caller puts it first on their PATH. The
        text is empty if every host is this machine.

        Raises:
            UnavailableError: the program that reaches hosts is not installed.
        """
        return "" if all(map(is_local, hosts)) else self._remote_shell(hosts)

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Yield a carrier that reaches the hosts, which are made before the block if they do not exist.

        Hosts that were made are removed after the block.
        """
        yield self

    def _argv(self, _host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        return tuple(argv)

    def _by_hand(self, _host: Host) -> str:
        return ""

    def _explain(self, answer: Answer) -> HostError | None:
        return explain_signal(answer)

    def _remote_shell(self, _hosts: Sequence[Host]) -> str:
        return ""


class ScheduledJob(Protocol):
    """The job of a scheduler in which a run takes place."""

    @property
    def name(self) -> str:
        """The job's name in messages, as ``Slurm job 17``."""

    @property
    def ends_at(self) -> float:
        """Unix time after which nothing may be measured; infinite without a time limit."""

    def require_share(self, host: Host, cpus: int, gpus: int) -> None:
        """Require that the agent of a host sees all CPUs and GPUs that the job has there.

        ``cpus`` and ``gpus`` are the numbers of CPUs and GPUs that the agent sees.

        Raises:
            HostError: the agent sees fewer, which would slow down every arm.
        """

    def share(self, host: Host, cpus: int) -> int:
        """Return how many of a host's ``cpus`` the job's ranks may keep busy."""

    def why_it_ended(self) -> AllocationError | None:
        """Return why the scheduler ended the job, as an error; None if it did not, or if that is unknown."""


class Allocation(NamedTuple):
    """The hosts of a run, and the way to reach them."""

    hosts: tuple[Host, ...]
    """The hosts in order, each with as many slots as it has ranks."""
    carrier: Carrier
    source: str = ""
    """Where the hosts come from, as a phrase for messages such as ``Slurm job 17``."""
    job: ScheduledJob | None = None
    """The scheduler's job that the hosts belong to; None if the engine knows of none."""
    rehearsed: Link | None = None
    """The limits of the links between the hosts of a rehearsal; None for real hosts."""
    interface: str | None = None
    """The network interface that the user named, or None."""
    wait_seconds: float = 0.0
    """Maximum time to wait for hosts that are starting."""

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Yield the allocation with hosts that exist; those of a rehearsal are removed after the block."""
        with self.carrier.opened() as carrier:
            yield self._replace(carrier=carrier)


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return the function that reads an option which is a whole number from ``least`` to ``most``."""

    def read(text: str) -> int:
        if not (text.isdecimal() and text.isascii() and least <= int(text) <= most):
            raise ValueError(f"It must be a whole number from {least} to {most:,}")
        return int(text)

    return read


def _read_wait(text: str) -> float:
    if not 0 <= (seconds := seconds_of(text)) < math.inf:
        raise ValueError("It must be a time, such as 5m")
    return seconds


INTERFACE: Options = {"interface": str}
OF_OTHER_HOSTS: Options = {**INTERFACE, "wait": _read_wait}
"""The options of every engine that reaches other hosts."""


def describe_host(host: Host) -> str:
    """Return ``Host NAME`` for messages, with the host's source if known, such as its line of a hostfile."""
    return f"Host {host.name} ({host.source})" if host.source else f"Host {host.name}"


def explain_signal(answer: Answer) -> HostError | None:
    """Return the error of a process on this machine that a signal killed; None if it exited by itself."""
    if answer.status is None or answer.status >= 0:
        return None
    return HostError(
        f"{describe_host(answer.host)}: a process of Ringside was killed by signal {-answer.status}.",
        found=answer.last_lines,
        remedy="Was it killed by hand, or was memory short? Run again.",
    )


def ssh_stand_in(start: str) -> str:
    """Return the text of a shell script that takes the place of ssh for mpirun and horovodrun.

    ``start`` is the last part of the script: it executes the shell command ``"$*"`` on the host ``"$host"``.
    """
    return f"{_STAND_IN}{start}\n"
