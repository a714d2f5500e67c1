"""Add to the error of a failed launch what was known beforehand and may explain it.

Two things are known beforehand: the defects that the check at the start found on the hosts, and the settings
that libraries read from the user's shell. Each is added only to errors that it can cause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from compare.errors import LaunchError, StalledError
from compare.schema.arms import Arm
from compare.schema.environment import inherited_variables, library_settings, readers_of

ErrorType = TypeVar("ErrorType", bound=LaunchError)
_LIBRARIES_BY_LAUNCHER = {
    "torchrun": "torch.distributed gloo nccl",
    "horovodrun": "horovod",
    "mpirun": "open mpi ",
    "mpiexec.hydra": "mpich",
}
"""The communication libraries that ranks load, by their launcher; ranks attest the same names."""
_MEETING, _STALLED = "meeting", "stalled"
"""Traits of failures: no rank finished a step, so the ranks may not have met; or a rank stalled."""
_TRAIT_BY_TOPIC = {
    "hostname": _MEETING,
    "network": _MEETING,
    "disk": "",
    "limits": "",
    "memory": "mpi",
    "slots": _STALLED,
    "horovod": "horovod",
    "mpi": "mpi",
}
"""The trait or library that a failure must have for a defect to explain it, by the defect's topic.

An empty text stands for every failure. Defects of other topics cause no failure of a launch.
"""
_MOST_SETTINGS = 6
_KILLED = "SIGKILL"
"""Only a person or the kernel sends this signal, so no defect or setting explains it."""


class Defect(NamedTuple):
    """A problem that the check at the start found on a host."""

    topic: str
    """What the check looked at, such as ``disk``."""
    host: str
    """The name of the host."""
    found: str
    """The problem, in sentences."""
    fix: str
    """What the user can do, as a sentence."""


class Circumstances(NamedTuple):
    """What is known about the launch of one arm before it starts, and may explain its failure."""

    arm: Arm
    settings: Mapping[str, str]
    """Library settings that the launch inherits from the user's shell, by their names."""
    defects: Callable[[], Sequence[Defect]]
    """Returns what the check at the start found."""

    def explain(self, error: ErrorType, *, trained: bool) -> ErrorType:
        """Add defects and settings that may have caused an error, with their fixes; return the same error.

        ``trained`` says whether any rank finished a step.
        """
        text, libraries = str(error), ""
        if _KILLED in text:
            return error
        if self.arm.traits.communicates:
            controller = self.arm.options.get("controller", "")
            libraries = f"{_LIBRARIES_BY_LAUNCHER[self.arm.runtime.launcher]} {controller} "
        meeting = _MEETING if libraries and not trained else ""
        traits = f"{libraries} {meeting} {_STALLED if isinstance(error, StalledError) else ''}"
        found, fixes = [error.found], [error.remedy]
        for defect in self.defects():
            if defect.topic in _TRAIT_BY_TOPIC and _TRAIT_BY_TOPIC[defect.topic] in traits:
                found.append(f"The check of {defect.host} found: {defect.found}")
                fixes.append(defect.fix)
        if suspects := self._suspected_settings(libraries, text):
            listed = [*suspects[:_MOST_SETTINGS], *(["…"] if len(suspects) > _MOST_SETTINGS else [])]
            names = [setting.partition("=")[0] for setting in suspects]
            found.append(f"It inherited from your shell: {', '.join(listed)}.")
            fixes.append(f"If that may be the reason, try again after: unset {' '.join(names)}")
        error.found, error.remedy = ("\n".join(filter(None, lines)) for lines in (found, fixes))
        return error

    def _suspected_settings(self, libraries: str, text: str) -> list[str]:
        """Return the inherited settings that may explain an error with this text, as ``NAME=VALUE``.

        Settings that the launch's communication ``libraries`` read come first, then those that any library
        may read. Variables such as LD_PRELOAD count only if the text names a shared library.
        """
        of_launch, of_any = [], []
        for name, value in self.settings.items():
            readers = readers_of(name, value)
            if any(reader in libraries for reader in readers):
                of_launch.append(f"{name}={value}")
            elif not readers and (not name.startswith("LD_") or ".so" in text):
                of_any.append(f"{name}={value}")
        return of_launch + of_any


def shell_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the library settings that a launch takes from the user's shell, by their names.

    LD_LIBRARY_PATH is one of them. A variable that has another value in ``environment``, which is that of the
    launcher's command, is left out.
    """
    shell = inherited_variables(os.environ)
    from_shell = library_settings(shell)
    from_shell |= {name: shell[name] for name in ("LD_LIBRARY_PATH",) if name in shell}
    return {name: value for name, value in from_shell.items() if environment.get(name, value) == value}
