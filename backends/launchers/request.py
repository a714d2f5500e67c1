"""Define a launcher's request and its commands, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

MARKER = "RINGSIDE_LAUNCH"
"""Environment variable that holds the launch's name in all its processes."""


class Host(Protocol):
    """The facts of a host that a launcher needs."""

    @property
    def name(self) -> str:
        """Name or address."""

    @property
    def slots(self) -> int:
        """Number of its ranks."""


def hosts_argument(hosts: Iterable[Host]) -> str:
    """Return the value of a launcher's ``-H``: ``a:2,b:2``.

    mpirun 4.1 and horovodrun take only names and IPv4 addresses: ``user@host:N`` and ``[::1]:N`` fail.
    """
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


@dataclass(frozen=True, slots=True)
class Request:
    """One launch of one arm: ranks of one program on these hosts."""

    executable: Path
    """Full path of the launcher: a bare name fails on other hosts.

    For a launcher that is a module, it is the interpreter.
    """
    python: Path
    """The interpreter that every rank runs."""
    hosts: tuple[Host, ...]
    """The hosts; ``slots`` is the number of ranks on each."""
    module: str
    """Python module that every rank runs."""
    arguments: tuple[str, ...]
    port: int
    """A free port on the first host, for launchers that choose none."""
    environment: Mapping[str, str]
    """Variables for every rank, over its inherited ones."""
    interface: str
    """Network interface of all arms."""
    options: Mapping[str, bool | float | str] = field(default_factory=dict)
    """The arm's options; a launcher reads those that are its flags."""
    exported: tuple[str, ...] = ()
    """Names of the arm's own variables, for launchers that must list them."""
    address: str = "127.0.0.1"
    """Address of the first host on the interface."""
    network: str = ""
    """The network of all hosts, as 10.0.0.0/24; empty on one machine."""
    mpi_prefix: Path | None = None
    """Open MPI's folder on every host, which a remote PATH may lack."""
    mark: str = ""
    """The launch's name, for daemons that a launcher starts on other hosts."""

    @property
    def ranks(self) -> int:
        """Number of processes in all."""
        return sum(host.slots for host in self.hosts)


@dataclass(frozen=True, slots=True)
class Command:
    """A program to execute, without a shell."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables over the caller's allow-listed environment."""
    host: Host | None = None
    """The host that executes it; None for the starting machine."""
