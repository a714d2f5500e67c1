"""Add to an error what is known about its launch and may explain it.

Two things are known: defects of hosts that the check at the start found, and settings that libraries read
from the user's shell. Each is added only to errors that it can cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from compare.errors import LaunchError
from compare.schema.arms import Arm
from compare.schema.environment import readers_of

ErrorType = TypeVar("ErrorType", bound=LaunchError)
_BY_LAUNCHER = {
    "torchrun": "torch.distributed gloo nccl",
    "horovodrun": "horovod",
    "mpirun": "open mpi ",
    "mpiexec.hydra": "mpich",
}
"""The communication libraries that ranks of each launcher load, named as in their attestations."""
_MOST_SETTINGS = 6
_KILLED = "SIGKILL"
"""Only a person or the kernel sends this signal, so no defect or setting explains it."""


class Defect(NamedTuple):
    """A problem that the check at the start found on a host."""

    topic: str
    host: str
    found: str
    fix: str


class Failure(NamedTuple):
    """The facts of a failure that decide whether a defect may have caused it."""

    libraries: str
    """The communication libraries that the ranks loaded; ``none`` without communication."""
    trained: bool
    """Whether any rank had finished a step."""
    text: str


# Whether a defect of each topic can cause a failure. Other topics change figures, or stop a run at its start.
_MAY_CAUSE: dict[str, Callable[[Failure], bool]] = {
    "hostname": lambda failure: not failure.trained and failure.libraries != "none",
    "network": lambda failure: not failure.trained and failure.libraries != "none",
    "disk": lambda _: True,
    "limits": lambda _: True,
    "memory": lambda failure: "mpi" in failure.libraries,
    "slots": lambda failure: "no progress" in failure.text or "waited for each other" in failure.text,
    "horovod": lambda failure: "horovod" in failure.libraries,
    "mpi": lambda failure: "mpi" in failure.libraries,
}


@dataclass(frozen=True)
class Circumstances:
    """What is known about the launch of one arm before it starts."""

    arm: Arm | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Library settings that the launch inherits from the user's shell, by their names."""
    defects: Callable[[], Sequence[Defect]] = tuple
    """Returns what the check at the start found."""

    def beside(self, error: ErrorType, *, trained: bool) -> ErrorType:
        """Add to an error what may explain it, with the fixes, and return the same error.

        ``trained`` says whether any rank finished a step.
        """
        failure = Failure(self._libraries(), trained, str(error))
        if _KILLED in failure.text:
            return error
        found, fixes = [error.found], [error.remedy]
        for defect in self.defects():
            if _MAY_CAUSE.get(defect.topic, lambda _: False)(failure):
                found.append(f"The check of {defect.host} found: {defect.found}")
                fixes.append(defect.fix)
        if read := self._read(failure):
            shown = [*read[:_MOST_SETTINGS], *(["…"] if len(read) > _MOST_SETTINGS else [])]
            names = [setting.partition("=")[0] for setting in read]
            found.append(f"From your shell it has: {', '.join(shown)}.")
            fixes.append(f"If that may be the reason, try again after: unset {' '.join(names)}")
        error.found, error.remedy = ("\n".join(filter(None, lines)) for lines in (found, fixes))
        return error

    def _libraries(self) -> str:
        if self.arm is None or not self.arm.traits.communicates:
            return "none"
        return f"{_BY_LAUNCHER[self.arm.runtime.launcher]} {self.arm.options.get('controller', '')} "

    def _read(self, failure: Failure) -> list[str]:
        """Return the settings that may explain a failure, as ``NAME=VALUE``.

        Settings of the launch's communication libraries come first, then those that all libraries read.
        """
        own, of_all = [], []
        for name, value in self.settings.items():
            readers = readers_of(name, value)
            if any(reader in failure.libraries for reader in readers):
                own.append(f"{name}={value}")
            elif not readers and (not name.startswith("LD_") or ".so" in failure.text):
                of_all.append(f"{name}={value}")
        return own + of_all
