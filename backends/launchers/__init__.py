"""Write the commands of launchers and read their variables, with one module for each launcher.

This package starts no process.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from backends.base import Placement
from backends.launchers import horovodrun, hydra, mpirun, torchrun
from backends.launchers.request import Command, Request


class Launcher(Protocol):
    """The interface that each launcher's module of this package has."""

    EXECUTABLE: str
    """Name of the launcher's program, which must be installed."""
    REMEDY: str
    """What to do if the program is missing, such as a command that installs it."""
    VARIABLES: list[str]
    """The environment variables that tell a rank its placement.

    Each text has the names of four variables, separated by blanks. They are the rank, the local rank, the
    world size and the local world size. The first text whose rank variable is set counts, else the last.
    """

    def commands(self, request: Request) -> list[Command]:
        """Return the commands that start every rank of ``request``."""


LAUNCHERS: dict[str, Launcher] = {
    module.EXECUTABLE: module for module in (torchrun, horovodrun, mpirun, hydra)
}


def read_placement(launcher: str, environ: Mapping[str, str]) -> Placement:
    """Return the placement of a rank on this host, as its launcher set it in ``environ``.

    Raises:
        KeyError: a variable is missing, so another launcher started the process.
    """
    *preferred, last = LAUNCHERS[launcher].VARIABLES
    names = next((names for names in preferred if names.split()[0] in environ), last)
    rank, local_rank, world_size, local_world_size = (int(environ[name]) for name in names.split())
    return Placement(rank, local_rank, world_size, local_world_size, socket.gethostname())


def missing_launcher_clause(launcher: str, python: Path = Path(sys.executable)) -> str:
    """Return a clause for errors that states where ``find_launcher`` looked for a missing launcher."""
    if launcher == hydra.EXECUTABLE:
        return f"{launcher} is not in {hydra.prefix() / 'bin'}"
    return f"{launcher} is neither beside {python} nor on PATH"


def find_launcher(name: str, python: Path = Path(sys.executable)) -> Path | None:
    """Return the path of a launcher beside an interpreter or on PATH; None if it is missing.

    A launcher beside the interpreter comes first, because it matches the interpreter's libraries. MPICH's
    launcher is searched only in MPICH's own folder. For torchrun and another interpreter than this one, the
    result is that interpreter, which then runs torchrun as a module. The script ``torchrun`` beside it might
    start the interpreter that it was copied from.
    """
    if name == torchrun.EXECUTABLE and python != Path(sys.executable):
        return python
    folders = [str(python.parent), os.environ.get("PATH", "")]
    if name == hydra.EXECUTABLE:
        folders = [str(hydra.prefix() / "bin")]
    path = shutil.which(name, path=os.pathsep.join(folders))
    return Path(path) if path else None
