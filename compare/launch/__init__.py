"""Launchers: one module each, two pure functions each.

``commands(request)`` says what to execute, as data; ``placement(environ)`` reads in a rank what that
launcher told it. Nothing here starts anything: that is ``supervise``'s work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from compare.launch import horovodrun, mpirun, torchrun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.base import Placement
    from compare.launch.request import Command, Request


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
