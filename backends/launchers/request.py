"""Define the request that a launcher's module takes, and the commands that it returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

MARKER = "RINGSIDE_LAUNCH"
"""Environment variable that holds the launch's name in all its processes."""


class Host(Protocol):
    """The properties of a host that a launcher's command contains."""

    @property
    def name(self) -> str:
        """Name or address of the host."""

    @property
    def slots(self) -> int:
        """Number of ranks that run on the host."""


def hosts_argument(hosts: Iterable[Host]) -> str:
    """Return the hosts with their numbers of ranks as ``a:2,b:2``, for flags of mpirun and horovodrun.

    These launchers take only names and IPv4 addresses: ``user@host:N`` and ``[::1]:N`` fail.
    """
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


@dataclass(frozen=True, slots=True)
class Request:
    """The request to launch one arm: its launcher, the program of its ranks, and their hosts."""

    executable: Path
    """Full path of the launcher, because a bare name fails on other hosts.

    If torchrun has to run as a module, it is the path of the interpreter.
    """
    python: Path
    """The interpreter that every rank runs."""
    hosts: tuple[Host, ...]
    """The hosts; ``slots`` is the number of ranks on each."""
    module: str
    """Name of the Python module that every rank runs; empty if it runs a script."""
    arguments: tuple[str, ...]
    """Arguments of that module, or the path of the script with its arguments."""
    port: int
    """A free port on the first host, for launchers that do not choose one."""
    environment: Mapping[str, str]
    """Variables for every rank; they replace inherited ones of the same name."""
    interface: str
    """Network interface that all arms use."""
    options: Mapping[str, bool | float | str] = field(default_factory=dict)
    """The arm's options; a launcher reads those that become its flags."""
    exported: tuple[str, ...] = ()
    """Names of the variables that the arm itself sets, for launchers that must list them."""
    address: str = "127.0.0.1"
    """The first host's address on ``interface``."""
    network: str = ""
    """The network that all hosts share, such as 10.0.0.0/24; empty on one machine."""
    mpi_prefix: Path | None = None
    """Open MPI's folder on every host, whose PATH may lack it; None without Open MPI."""
    mark: str = ""
    """Value of ``MARKER`` for daemons that a launcher starts on other hosts."""

    @property
    def ranks(self) -> int:
        """Total number of ranks on all hosts."""
        return sum(host.slots for host in self.hosts)

    def program(self, *, by_mpi4py: bool = False) -> tuple[str, ...]:
        """Return the command that each rank runs.

        With ``by_mpi4py``, mpi4py runs it and aborts all ranks after an uncaught exception. Without
        this, the other ranks would wait for ever.
        """
        runner = ("-m", "mpi4py") if by_mpi4py else ()
        module = ("-m", self.module) if self.module else ()
        return (str(self.python), *runner, *module, *self.arguments)


@dataclass(frozen=True, slots=True)
class Command:
    """A program to execute, without a shell."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables for the program, added to those of the caller's environment that a launch may inherit."""
    host: Host | None = None
    """The host that executes the program; None for the machine that starts the launch."""
