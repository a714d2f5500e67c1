"""What a launcher is asked for, and what it answers: plain data, compared to the letter in tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

MARKER = "RINGSIDE_LAUNCH"
"""Environment variable that names the launch in every process of it."""


class Host(Protocol):
    """What a launcher must know of a host."""

    @property
    def name(self) -> str:
        """Name or address."""

    @property
    def slots(self) -> int:
        """Number of ranks that it gets."""


def hosts_argument(hosts: Iterable[Host]) -> str:
    """Return the value of a launcher's ``-H``: ``a:2,b:2``.

    mpirun 4.1 and horovodrun take names and IPv4 addresses alone: ``user@host:N`` and ``[::1]:N`` fail.
    """
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


@dataclass(frozen=True, slots=True)
class Request:
    """One launch of one arm: so many ranks of one program on these hosts."""

    executable: Path
    """The launcher, by its whole path: a bare name would fail on other hosts."""
    python: Path
    """The interpreter that every rank runs."""
    hosts: tuple[Host, ...]
    """Each with the number of ranks that it gets as its slots."""
    module: str
    """Python module that every rank runs."""
    arguments: tuple[str, ...]
    port: int
    """A port that was free on the first host a moment ago, for launchers that do not find their own."""
    environment: Mapping[str, str]
    """Set for every rank, over what it inherits."""
    interface: str
    """Network interface for all arms alike."""
    options: Mapping[str, bool | float | str] = field(default_factory=dict)
    """The arm's options: a launcher reads those that are flags of its own."""
    exported: tuple[str, ...] = ()
    """Names in ``environment`` that are the arm's own, for launchers that must be told what to pass on."""
    address: str = "127.0.0.1"
    """Of the first host on the interface of all arms."""
    network: str = ""
    """The network that all hosts share on that interface, as 10.0.0.0/24; empty on one machine."""
    mpi_prefix: Path | None = None
    """Where Open MPI is installed, here as on every host; a remote shell's PATH need not know it."""
    mark: str = ""
    """The launch's name, for what a launcher starts on other hosts and nobody else would mark."""

    @property
    def ranks(self) -> int:
        """Number of processes in all."""
        return sum(host.slots for host in self.hosts)


@dataclass(frozen=True, slots=True)
class Command:
    """A program to execute, without a shell."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Over the allow-listed environment of the caller."""
    host: Host | None = None
    """Where it is executed; None for wherever the launch is started from."""
