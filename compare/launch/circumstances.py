"""Name what is known of a launch and may explain its failure.

The check at the start finds defects of hosts, and libraries read settings of the user's shell. Each stands
beside the failures that it can cause, and beside no other.
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
"""What ranks of a launcher load, in the words that they attest."""
_MOST_SETTINGS = 6
_KILLED = "SIGKILL"
"""A person or the kernel does that, and no setting."""


class Defect(NamedTuple):
    """What the check at the start found on a host."""

    topic: str
    host: str
    found: str
    fix: str


class Failure(NamedTuple):
    """What decides whether a defect may be the reason."""

    libraries: str
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
    """What is known of the launch of one arm."""

    arm: Arm | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of libraries that it inherits from the shell."""
    defects: Callable[[], Sequence[Defect]] = tuple

    def beside(self, error: ErrorType, *, trained: bool) -> ErrorType:
        """Return the error with what may explain it, and the fix."""
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
        """Return the settings that it reads, its own libraries' first."""
        own, of_all = [], []
        for name, value in self.settings.items():
            readers = readers_of(name, value)
            if any(reader in failure.libraries for reader in readers):
                own.append(f"{name}={value}")
            elif not readers and (not name.startswith("LD_") or ".so" in failure.text):
                of_all.append(f"{name}={value}")
        return own + of_all
