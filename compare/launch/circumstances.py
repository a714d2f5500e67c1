"""Add to an error what is known about its launch and may explain it.

Two things are known: defects of hosts that the check at the start found, and settings that libraries read
from the user's shell. Each is added only to errors that it can cause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from compare.errors import LaunchError, StalledError
from compare.schema.arms import Arm
from compare.schema.environment import inherited, library_settings, readers_of

ErrorType = TypeVar("ErrorType", bound=LaunchError)
_BY_LAUNCHER = {
    "torchrun": "torch.distributed gloo nccl",
    "horovodrun": "horovod",
    "mpirun": "open mpi ",
    "mpiexec.hydra": "mpich",
}
"""The communication libraries that ranks of each launcher load, named as in their attestations."""
_MEETING, _STALLED = "meeting", "stalled"
_MAY_CAUSE = {
    "hostname": _MEETING,
    "network": _MEETING,
    "disk": "",
    "limits": "",
    "memory": "mpi",
    "slots": _STALLED,
    "horovod": "horovod",
    "mpi": "mpi",
}
"""Part of the traits of every failure that a defect of each topic can cause.

Other topics change figures, or stop a run at its start.
"""
_MOST_SETTINGS = 6
_KILLED = "SIGKILL"
"""Only a person or the kernel sends this signal, so no defect or setting explains it."""


class Defect(NamedTuple):
    """A problem that the check at the start found on a host."""

    topic: str
    host: str
    found: str
    fix: str


class Circumstances(NamedTuple):
    """What is known about the launch of one arm before it starts."""

    arm: Arm
    settings: Mapping[str, str]
    """Library settings that the launch inherits from the user's shell, by their names."""
    defects: Callable[[], Sequence[Defect]]
    """Returns what the check at the start found."""

    def beside(self, error: ErrorType, *, trained: bool) -> ErrorType:
        """Add to an error what may explain it, with the fixes, and return the same error.

        ``trained`` says whether any rank finished a step.
        """
        text, libraries = str(error), self._libraries()
        if _KILLED in text:
            return error
        meeting = _MEETING if libraries and not trained else ""
        traits = f"{libraries} {meeting} {_STALLED if isinstance(error, StalledError) else ''}"
        found, fixes = [error.found], [error.remedy]
        for defect in self.defects():
            if defect.topic in _MAY_CAUSE and _MAY_CAUSE[defect.topic] in traits:
                found.append(f"The check of {defect.host} found: {defect.found}")
                fixes.append(defect.fix)
        if read := self._read(libraries, text):
            shown = [*read[:_MOST_SETTINGS], *(["…"] if len(read) > _MOST_SETTINGS else [])]
            names = [setting.partition("=")[0] for setting in read]
            found.append(f"It inherited from your shell: {', '.join(shown)}.")
            fixes.append(f"If that may be the reason, try again after: unset {' '.join(names)}")
        error.found, error.remedy = ("\n".join(filter(None, lines)) for lines in (found, fixes))
        return error

    def _libraries(self) -> str:
        """Return the communication libraries that the ranks load; empty without communication."""
        if not self.arm.traits.communicates:
            return ""
        return f"{_BY_LAUNCHER[self.arm.runtime.launcher]} {self.arm.options.get('controller', '')} "

    def _read(self, libraries: str, text: str) -> list[str]:
        """Return the settings that may explain a failure, as ``NAME=VALUE``.

        Settings of the launch's communication libraries come first, then those that all libraries read.
        """
        own, of_all = [], []
        for name, value in self.settings.items():
            readers = readers_of(name, value)
            if any(reader in libraries for reader in readers):
                own.append(f"{name}={value}")
            elif not readers and (not name.startswith("LD_") or ".so" in text):
                of_all.append(f"{name}={value}")
        return own + of_all


def shell_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the library settings that a launch takes from the user's shell, by their names.

    LD_LIBRARY_PATH is one of them. A variable to which ``environment`` gives another value is left out.
    """
    read = inherited(os.environ)
    from_shell = library_settings(read) | {name: read[name] for name in ("LD_LIBRARY_PATH",) if name in read}
    return {name: value for name, value in from_shell.items() if environment.get(name, value) == value}
