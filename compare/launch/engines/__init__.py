"""Reach hosts: one file for each way.

An engine gives two things. An ``Allocation`` says which hosts a run has, and how many ranks each takes.
A ``Carrier`` starts one process on a host, with pipes to its standard input, output and error.
All else is the same for every engine: ``fanout`` runs a command on many hosts, ``agent`` runs launches.
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
    """Its exit status, or the carrier's; None where it was ended."""
    stdout: bytes
    stderr: bytes
    seconds: float
    started_at: float = 0.0
    """Unix time of this machine at which the command was started."""
    flooded: str = ""
    """The stream on which the host sent too much, or nothing."""
    here: bool = False
    """Whether the command itself was executed here, not a carrier's program.

    The name of a pod may begin to resolve meanwhile, so that ``is_local`` changes.
    """

    @property
    def last_lines(self) -> str:
        """The end of stderr, without the greeting that many hosts print."""
        text = self.stderr.decode(errors="replace")
        lines = [printable(line).strip() for line in text.splitlines() if line.strip("@ \r\n")]
        return "\n".join(lines[-_LAST_LINES:])


class Carrier(Protocol):
    """A way to start processes on hosts."""

    def argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that executes ``argv`` on a host.

        It is executed on this machine, and its pipes are those of the process on the host.

        Raises:
            UnavailableError: the program that reaches hosts is not installed.
        """

    def by_hand(self, host: Host) -> str:
        """Return a command to try by hand; empty for this machine."""

    def explain(self, answer: Answer) -> HostError | None:
        """Return why a host was not reached; None where it was."""

    def remote_shell(self, folder: Path, hosts: Sequence[Host]) -> Mapping[str, str]:
        """Return the files that let mpirun and horovodrun start ranks on hosts.

        Both call a program named ``ssh``. It belongs at ``bin/ssh``, and ``bin`` first on their PATH.

        Returns:
            Their contents, by their names below the folder; none where every host is this machine.

        Raises:
            UnavailableError: the program that reaches hosts is not installed.
        """


class ScheduledJob(Protocol):
    """The job of a scheduler in which a run takes place."""

    @property
    def name(self) -> str:
        """Its name in messages, as ``Slurm job 17``."""

    @property
    def ends_at(self) -> float:
        """Unix time after which nothing may be measured."""

    def require_share(self, host: Host, cpus: int, gpus: int) -> None:
        """Require that a process sees the job's share of a host.

        Raises:
            HostError: it sees fewer CPUs or GPUs.
        """

    def share(self, host: Host, cpus: int) -> int:
        """Return the number of CPUs that ranks may fill on a host."""

    def why_it_ended(self) -> AllocationError | None:
        """Return why the scheduler ended it; None if it did not."""


class Allocation(NamedTuple):
    """The hosts of a run, and the way to reach them."""

    hosts: tuple[Host, ...]
    """Each with as many slots as it has ranks."""
    carrier: Carrier
    source: str = ""
    """Where the hosts come from, for the user."""
    job: ScheduledJob | None = None
    """The job that they belong to, where the engine knows it."""
    rehearsed: Link | None = None
    """The links of hosts that a rehearsal made; None for real hosts."""


def named(host: Host) -> str:
    """Return a host's name for messages, with its line in the hostfile."""
    return f"Host {host.name} ({host.source})" if host.source else f"Host {host.name}"
