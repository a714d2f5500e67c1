"""Launchers: one module each, two pure functions each.

``commands(request)`` says what to execute, as data; ``placement(environ)`` reads in a rank what that
launcher told it. Nothing here starts anything: that is ``supervise``'s work.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backends.launchers import horovodrun, mpirun, torchrun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.base import Placement
    from backends.launchers.request import Command, Request


class Launcher(Protocol):
    """What a launcher's module offers."""

    EXECUTABLE: str
    """The program that must be there."""
    REMEDY: str
    """What brings it back where it is not."""

    def commands(self, request: Request) -> list[Command]:
        """Say what to execute to start every rank of ``request``."""

    def placement(self, environ: Mapping[str, str]) -> Placement:
        """Read where this rank stands, from the environment that the launcher gave it.

        Raises:
            KeyError: the variable that is missing; the process was not started by this launcher.
        """


LAUNCHERS: dict[str, Launcher] = {"torchrun": torchrun, "horovodrun": horovodrun, "mpirun": mpirun}


def environment_bin() -> Path:
    """Return the folder of this environment's executables."""
    return Path(sys.executable).parent


def where_it_is_not(launcher: str) -> str:
    """Say where a launcher was looked for that ``find_launcher`` does not find."""
    return f"{launcher} is neither beside {sys.executable} nor on PATH"


def find_launcher(name: str) -> Path | None:
    """Find a launcher beside this interpreter, which is the one that matches its libraries, or on PATH."""
    executable = LAUNCHERS[name].EXECUTABLE
    found = shutil.which(
        executable, path=os.pathsep.join([str(environment_bin()), os.environ.get("PATH", "")])
    )
    return Path(found) if found else None
