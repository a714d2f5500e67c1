"""mpirun of Open MPI."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from backends.base import Placement
from compare.hostfile import hosts_argument
from compare.launch.request import Command, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

EXECUTABLE = "mpirun"


def commands(request: Request) -> list[Command]:
    """Start all ranks with one mpirun."""
    argv = (
        str(request.executable),
        "--allow-run-as-root",
        "-np",
        str(request.ranks),
        "-host",
        hosts_argument(request.hosts),
        # Open MPI would bind each rank to one core; threads and affinity are set alike for every arm.
        "--bind-to",
        "none",
        # Ranks that wait give the core away, so that oversubscription is slow but not a standstill.
        *mca("mpi_yield_when_idle", "1"),
        # mpirun's own daemons would listen on every address of the machine.
        *mca("oob_tcp_if_include", request.interface),
        *mca("btl_tcp_if_include", request.interface),
        # By name: the value is in mpirun's own environment, and on no command line.
        *(flag for name in request.exported for flag in ("-x", name)),
        # An uncaught exception in plain mpi4py leaves the other ranks waiting for ever; under this
        # runner it aborts the job.
        str(request.python),
        "-m",
        "mpi4py",
        "-m",
        request.module,
        *request.arguments,
    )
    return [Command(argv, request.environment)]


def mca(name: str, value: str) -> tuple[str, str, str]:
    """Spell one of Open MPI's parameters."""
    return ("--mca", name, value)


def placement(environ: Mapping[str, str]) -> Placement:
    """Read Open MPI's variables."""
    return Placement(
        rank=int(environ["OMPI_COMM_WORLD_RANK"]),
        local_rank=int(environ["OMPI_COMM_WORLD_LOCAL_RANK"]),
        world_size=int(environ["OMPI_COMM_WORLD_SIZE"]),
        local_world_size=int(environ["OMPI_COMM_WORLD_LOCAL_SIZE"]),
        host=socket.gethostname(),
    )
