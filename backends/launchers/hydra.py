"""Write the command of Hydra, the launcher of MPICH.

MPICH is installed in a folder of its own, because its wheel has files with the same names as Open MPI's.
"""

from __future__ import annotations

from pathlib import Path

from backends.cache import cache_folder
from backends.launchers.request import Command, Request

EXECUTABLE = "mpiexec.hydra"
REMEDY = "ringside setup mpich"
VARIABLES = ["PMI_RANK MPI_LOCALRANKID PMI_SIZE MPI_LOCALNRANKS"]
VERSION = "5.0.2"

# Hydra treats a rank as failed if it exits before MPICH's exit handlers have run, and all our ranks do. It
# then sends SIGUSR1 to the process groups of the others. It kills those groups if a process or the launcher
# dies of a signal. So each rank has a parent that is alone in its group. When Hydra kills the parent, the
# rank's witness receives SIGTERM and leaves its record. When the witness is killed, the parent kills itself,
# and Hydra ends the launch.
_PARENT_SCRIPT = """\
trap '' USR1
setsid "$@"
status=$?
[ "$status" -lt 128 ] || kill -KILL $$
exit "$status"
"""


def prefix() -> Path:
    """Return MPICH's folder, which ``ringside setup mpich`` creates."""
    return cache_folder() / f"mpich-{VERSION}"


def library() -> Path:
    """Return the path of MPICH's shared library, whether it is installed or not."""
    return prefix() / "lib" / "libmpi.so.12"


def commands(request: Request) -> list[Command]:
    """Return one mpiexec.hydra command, which starts all ranks on this host."""
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
        # Without this flag, Hydra would kill the groups to which it now sends SIGUSR1.
        "-disable-auto-cleanup",
        *("sh", "-c", _PARENT_SCRIPT, "sh"),
        *request.program(by_mpi4py=True),
    )
    # mpi4py's wheel loads the library that MPI4PY_LIBMPI names, in place of the environment's.
    variables = {"MPI4PY_LIBMPI": str(library()), "UCX_NET_DEVICES": request.interface}
    return [Command(argv, variables | dict(request.environment))]
