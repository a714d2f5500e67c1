"""Write the command of MPICH's process manager, Hydra.

MPICH has a prefix of its own: its wheel installs the same file names as Open MPI's.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from backends.base import Placement
from backends.cache import cache_folder
from backends.launchers.request import Command, Request

EXECUTABLE = "mpiexec.hydra"
REMEDY = "compare install mpich"
VERSION = "5.0.2"

# Hydra takes a rank for failed if it exits before MPICH's exit handlers have run, as all ranks do. It then
# sends SIGUSR1 to the process groups of the others. It kills them if a process dies of a signal, or the
# launcher does. So each rank has a parent that is alone in its group. When Hydra kills that, the rank's
# witness receives SIGTERM and leaves its record. When the witness is killed, this parent ends likewise, and
# Hydra ends the launch.
_PARENT = """\
trap '' USR1
setsid "$@"
status=$?
[ "$status" -lt 128 ] || kill -KILL $$
exit "$status"
"""


def prefix() -> Path:
    """Return the folder of MPICH, which ``compare install mpich`` makes."""
    return cache_folder() / f"mpich-{VERSION}"


def library() -> Path:
    """Return MPICH's library in its prefix."""
    return prefix() / "lib" / "libmpi.so.12"


def commands(request: Request) -> list[Command]:
    """Start all ranks on this host with one mpiexec.hydra."""
    argv = (
        str(request.executable),
        "-n",
        str(request.ranks),
        # In an allocation of Slurm, Hydra would start its daemons through Slurm.
        "-launcher",
        "fork",
        "-rmk",
        "user",
        "-iface",
        request.interface,
        # All arms must have the same affinity.
        "-bind-to",
        "none",
        # Without this, it would kill where it now sends SIGUSR1.
        "-disable-auto-cleanup",
        *("sh", "-c", _PARENT, "sh"),
        # After an uncaught exception in plain mpi4py the other ranks wait for ever. This runner aborts
        # the job.
        str(request.python),
        "-m",
        "mpi4py",
        "-m",
        request.module,
        *request.arguments,
    )
    # mpi4py's wheel loads the library that this variable names, in place of the environment's.
    own = {"MPI4PY_LIBMPI": str(library()), "UCX_NET_DEVICES": request.interface}
    return [Command(argv, own | dict(request.environment))]


def placement(environ: Mapping[str, str]) -> Placement:
    """Read Hydra's variables."""
    return Placement(
        rank=int(environ["PMI_RANK"]),
        local_rank=int(environ["MPI_LOCALRANKID"]),
        world_size=int(environ["PMI_SIZE"]),
        local_world_size=int(environ["MPI_LOCALNRANKS"]),
        host=socket.gethostname(),
    )
