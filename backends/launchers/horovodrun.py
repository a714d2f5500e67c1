"""Write horovodrun's command, for either of its controllers."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping

from backends.base import Placement
from backends.launchers import mpirun
from backends.launchers.request import Command, Request, hosts_argument

EXECUTABLE = "horovodrun"
REMEDY = "compare install horovod"


def commands(request: Request) -> list[Command]:
    """Start all ranks with one horovodrun."""
    controller = str(request.options["controller"])
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
        str(request.python),
        "-m",
        request.module,
        *request.arguments,
    )
    return [Command(argv, request.environment)]


def _mpi_flags(request: Request) -> tuple[str, ...]:
    """Pass to the mpirun underneath the flags of the mpirun arms."""
    flags = (
        "--allow-run-as-root",
        *mpirun.mca("mpi_yield_when_idle", "1"),
        *mpirun.mca("oob_tcp_if_include", request.network or request.interface),
        *(("--prefix", shlex.quote(str(request.mpi_prefix))) if request.network else ()),
        # horovodrun passes them to a shell.
        *(
            flag
            for name, value in mpirun.remote_parameters(request)
            for flag in mpirun.mca(name, shlex.quote(value))
        ),
    )
    return (f"--mpi-args={' '.join(flags)}",)


def placement(environ: Mapping[str, str]) -> Placement:
    """Read Horovod's variables under its Gloo controller, Open MPI's under the other."""
    if "HOROVOD_RANK" not in environ:
        return mpirun.placement(environ)
    return Placement(
        rank=int(environ["HOROVOD_RANK"]),
        local_rank=int(environ["HOROVOD_LOCAL_RANK"]),
        world_size=int(environ["HOROVOD_SIZE"]),
        local_world_size=int(environ["HOROVOD_LOCAL_SIZE"]),
        host=socket.gethostname(),
    )
