"""One exception tree for everything a user can mend, each branch with an exit code of its own.

Every error says three things: what failed, what was found, and what to do next. The command line
prints exactly that and exits with the branch's code; anything that is not a ``RingsideError`` is a
defect of ours and keeps its traceback.
"""

from __future__ import annotations

from typing import ClassVar


class RingsideError(Exception):
    """Something the user can mend.

    Args:
        what: what failed, naming the thing (arm, host, rank, file:line).
        found: what was found there instead of what was expected.
        remedy: what to do next, as an imperative sentence or a command line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, found: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.found, self.remedy) if part)


class UsageError(RingsideError):
    """The command line, the hostfile or the arms contradict themselves; nothing was started."""

    exit_code = 2


class DataError(RingsideError):
    """The data set is missing, truncated or not what its checksum says."""

    exit_code = 3


class UnavailableError(RingsideError):
    """A library, launcher or device that was asked for by name is not there; never substituted."""

    exit_code = 4


class OutputError(RingsideError):
    """Results cannot be written, or a run directory cannot be read."""

    exit_code = 5


class LaunchError(RingsideError):
    """A launch ended without one result from every rank."""

    exit_code = 6


class StalledError(LaunchError):
    """A launch outlived its deadline or a rank stopped making progress."""

    exit_code = 7


class ParityError(RingsideError):
    """The ranks of an arm did not train one model, or not the one that a single process trains."""

    exit_code = 8


class HostError(RingsideError):
    """A host cannot be reached, lets nobody in, or cannot do what it is asked."""

    exit_code = 9


class FairnessError(RingsideError):
    """The arms were not measured alike, and ``--strict`` asked for nothing less; results are saved."""

    exit_code = 10


class BudgetError(RingsideError):
    """The time that a whole run was given is over before its launch is."""

    exit_code = 11


def system_reason(error: OSError) -> str:
    """Say why the system refused, without its number and the path that the message names anyway."""
    return error.strerror or str(error) or type(error).__name__
