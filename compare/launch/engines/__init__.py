"""Reach hosts, with one module for each way to do so.

An engine provides two things. An ``Allocation`` says which hosts a run has, and how many ranks each takes.
A ``Carrier`` starts one process on a host, with pipes to its standard input, output and error.
The rest is the same for every engine: ``fanout`` runs a command on many hosts, and ``agent`` runs launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from compare.errors import AllocationError, HostError
from compare.schema.hosts import Host
from compare.schema.link import Link
from compare.text import printable

STREAM_BYTES = 1 << 20
"""Maximum size of what one host may send on each stream."""

_LAST_LINES = 3


class AbsentHostError(HostError):
    """A host that cannot be reached now. It may be starting."""


class Answer(NamedTuple):
    """The outcome of a command on a host."""

    host: Host
    status: int | None
    """Exit status of the command, or of the carrier that failed; None if the command was ended."""
    stdout: bytes
    stderr: bytes
    seconds: float
    started_at: float = 0.0
    """Unix time of this machine at which the command was started."""
    flooded: str = ""
    """The stream (stdout or stderr) on which the host sent more than ``STREAM_BYTES``, or empty."""
    here: bool = False
    """Whether the command itself was executed on this machine, and no carrier's program.

    ``is_local`` cannot tell afterwards, because it changes when the name of a pod begins to resolve.
    """

    @property
    def last_lines(self) -> str:
        """The last three lines of stderr, without blank lines and rules, and safe for a terminal."""
        text = self.stderr.decode(errors="replace")
        lines = [printable(line).strip() for line in text.splitlines() if line.strip("@ \r\n")]
        return "\n".join(lines[-_LAST_LINES:])


class Carrier(Protocol):
    """A way to start processes on hosts."""

    def argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that executes ``argv`` on a host.

        The command is executed on this machine, and its pipes are those of the process on the host.

        Raises:
            UnavailableError: the program that reaches hosts is not installed.
        """

    def by_hand(self, host: Host) -> str:
        """Return a command with which a user can test a host by hand; empty for this machine."""

    def explain(self, answer: Answer) -> HostError | None:
        """Return the error of a host that was not reached; None if it was, even if its command failed."""

    def remote_shell(self, folder: Path, hosts: Sequence[Host]) -> Mapping[str, str]:
        """Return the files that let mpirun and horovodrun start ranks on hosts.

        Both call a program named ``ssh``. The caller writes the files below ``folder``, with that program at
        ``bin/ssh``, and puts ``bin`` first on their PATH.

        Returns:
            The contents of the files, by their names below ``folder``; empty if every host is this machine.

        Raises:
            UnavailableError: the program that reaches hosts is not installed.
        """


class ScheduledJob(Protocol):
    """The job of a scheduler in which a run takes place."""

    @property
    def name(self) -> str:
        """The job's name in messages, as ``Slurm job 17``."""

    @property
    def ends_at(self) -> float:
        """Unix time after which nothing may be measured."""

    def require_share(self, host: Host, cpus: int, gpus: int) -> None:
        """Require that an agent sees all CPUs and GPUs that the job has on its host.

        ``cpus`` and ``gpus`` are the numbers that it sees.

        Raises:
            HostError: it sees fewer.
        """

    def share(self, host: Host, cpus: int) -> int:
        """Return how many of a host's ``cpus`` ranks may keep busy."""

    def why_it_ended(self) -> AllocationError | None:
        """Return the error of a job that the scheduler ended; None if it did not, or if that is unknown."""


class Allocation(NamedTuple):
    """The hosts of a run, and the way to reach them."""

    hosts: tuple[Host, ...]
    """The hosts in order, each with as many slots as it has ranks."""
    carrier: Carrier
    source: str = ""
    """Where the hosts come from, as a phrase for messages."""
    job: ScheduledJob | None = None
    """The scheduler's job that the hosts belong to; None if the engine knows of none."""
    rehearsed: Link | None = None
    """The links of hosts that a rehearsal made; None for real hosts."""


def named(host: Host) -> str:
    """Return a host's name for messages, with its source, such as its line in the hostfile."""
    return f"Host {host.name} ({host.source})" if host.source else f"Host {host.name}"
