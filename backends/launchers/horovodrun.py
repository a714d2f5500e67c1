"""Write horovodrun's command for the Gloo or the MPI controller."""

from __future__ import annotations

import shlex

from backends.arms.shared import CONTROLLER
from backends.launchers import mpirun
from backends.launchers.request import Command, Request, hosts_argument

EXECUTABLE = "horovodrun"
REMEDY = "ringside setup horovod"
# Under the MPI controller, ranks have the variables of Open MPI.
VARIABLES = ["HOROVOD_RANK HOROVOD_LOCAL_RANK HOROVOD_SIZE HOROVOD_LOCAL_SIZE", *mpirun.VARIABLES]


def commands(request: Request) -> list[Command]:
    """Return one horovodrun command, which starts all ranks."""
    controller = str(CONTROLLER.value_in(request.options))
    argv = (
        str(request.executable),
        f"--{controller}",
        # The cache in the home folder keeps hosts and interfaces that answered earlier.
        "--disable-cache",
        "-np",
        str(request.ranks),
        "-H",
        hosts_argument(request.hosts),
        "--network-interfaces",
        request.interface,
        *(_mpi_flags(request) if controller == "mpi" else ()),
        *request.program(),
    )
    return [Command(argv, request.environment)]


def _mpi_flags(request: Request) -> tuple[str, ...]:
    """Return horovodrun's flag ``--mpi-args``, with Open MPI's settings for the mpirun that it starts."""
    flags = (
        "--allow-run-as-root",
        *mpirun.mca("mpi_yield_when_idle", "1"),
        *mpirun.mca("oob_tcp_if_include", request.network or request.interface),
        *(("--prefix", shlex.quote(str(request.mpi_prefix))) if request.network else ()),
        # Quoted, because horovodrun passes the flags to a shell.
        *mpirun.remote_parameters(request, shlex.quote),
    )
    return (f"--mpi-args={' '.join(flags)}",)
