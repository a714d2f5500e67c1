"""Define the errors that a user can fix, with their exit codes.

Every error has three parts: what failed, what was found, and what to do. The command line prints them
and exits with the class's code. Any other exception is a bug in Ringside and keeps its traceback.
"""

from __future__ import annotations

from typing import ClassVar


class RingsideError(Exception):
    """An error that the user can fix.

    Args:
        what: what failed, with its name (arm, host, rank, file:line).
        found: what was found instead of what was expected.
        remedy: what to do next: an imperative sentence or a command line.
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
    """A request is wrong, or does not fit the hosts or a scheduler's job, so no rank was started."""

    exit_code = 2


class DataError(RingsideError):
    """The data set is missing or damaged, or cannot be fetched."""

    exit_code = 3


class UnavailableError(RingsideError):
    """A program, library, device or service is missing or fails. Ringside never uses another instead."""

    exit_code = 4

    @classmethod
    def unexecuted(cls, program: str, error: OSError) -> UnavailableError:
        """Return the error for a launcher that cannot be executed, with the system's reason."""
        return cls(
            f"{program} could not be executed.",
            found=f"{system_reason(error)}.",
            remedy="`ringside backends` says which launchers are there and how to install the others.",
        )


class OutputError(RingsideError):
    """A file, folder or output stream cannot be written, or stored results cannot be read."""

    exit_code = 5

    @classmethod
    def unwritten(cls, path: object, error: OSError) -> OutputError:
        """Return the error for a file or folder that cannot be written, with the system's reason."""
        return cls(
            f"{path} could not be written.",
            found=f"{system_reason(error)}.",
            remedy="Check that its folder exists, may be written and has free space, or choose another path.",
        )


class LaunchError(RingsideError):
    """A launch failed: a rank left no result, or the launcher failed."""

    exit_code = 6


class StalledError(LaunchError):
    """A launch took too long, a rank stopped making progress, or the launcher did not exit."""

    exit_code = 7


class ParityError(RingsideError):
    """An arm trains another model than a single process does, or a collective returns wrong numbers."""

    exit_code = 8


class HostError(RingsideError):
    """A host cannot be reached, or cannot run a launch."""

    exit_code = 9


class AllocationError(HostError):
    """The scheduler ended the job, for example because it was cancelled, preempted or out of time."""

    exit_code = 13


class ConditionsError(RingsideError):
    """The compared arms or runs had different conditions, or an arm ran outside its environment."""

    exit_code = 10


class BudgetError(RingsideError):
    """``--budget`` or the scheduler's job leaves too little time to run every arm or group once."""

    exit_code = 11


class InterleaveError(RingsideError):
    """Arms cannot run in turns: they do not fit into memory together, or a rank cannot be paused."""

    exit_code = 12


class SlowerError(RingsideError):
    """An arm is slower than a gate allows."""

    exit_code = 14


class TooNoisyError(RingsideError):
    """Noise, uneven load or too few rounds leave it open whether an arm is slower than a gate allows."""

    exit_code = 15


class UnprovenError(RingsideError):
    """No check of an arm's training failed, but one of them proves nothing.

    Either a wrong step would pass it as well, or no single process takes steps like the arm's.
    """

    exit_code = 16


class UnmeasuredError(RingsideError):
    """A user's own script ran to its end, but the meter could not measure what synchronising costs in it."""

    exit_code = 17


def system_reason(error: OSError) -> str:
    """Return the system's reason for an error, such as ``No space left on device``, or else its own text."""
    return error.strerror or str(error) or type(error).__name__
