"""Write jobs in which a scheduler runs a command of Ringside later.

This module has the checks that are common to all schedulers. The package connects to no host.
"""

from __future__ import annotations

from collections.abc import Sequence

from compare.errors import UsageError
from compare.schema.environment import hide_exports

COMMANDS = ("run", "aa", "verify", "scale", "collectives")
"""The commands that a job can run, because they launch ranks."""


def require_launching_command(words: Sequence[str], *, secrets_remedy: str) -> None:
    """Require that a command line launches ranks and has no value of ``-x``, which may be a secret.

    ``words`` is the command line without the program's name. ``secrets_remedy`` ends the error for a value of
    ``-x``, and states how ranks can receive such a value with this scheduler.

    Raises:
        UsageError: the command launches no ranks, or a value of ``-x`` would be written into the job.
    """
    if not words or words[0] not in COMMANDS:
        raise UsageError(
            f"{words[0]} is not a command that can be submitted." if words else "There is nothing to submit.",
            remedy=f"Name one of {', '.join(COMMANDS)} after two dashes: compare submit -- run --backend ddp",
        )
    if hide_exports(words) != list(words):
        raise UsageError(
            "The value of -x would be written into the job, where others can read it.", remedy=secrets_remedy
        )


def require_printable(values: Sequence[str]) -> None:
    """Require that no value has a line break or another character that cannot be printed.

    Raises:
        UsageError: a value has one, which the error shows.
    """
    for value in values:
        if not value.isprintable():
            raise UsageError(
                "An unprintable character would be written into the job.",
                found=repr(value),
                remedy="Leave it out, or submit from a folder of another name.",
            )


def flag_value(words: Sequence[str], flag: str) -> str | None:
    """Return the value of the last ``--flag value`` or ``--flag=value``; None if there is no such flag.

    The flag, such as ``--budget``, counts only where it is written in full.
    """
    value = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            value = following
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value
