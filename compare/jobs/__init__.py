"""Write jobs for schedulers that run a command of Ringside later; this package reaches no host.

Here is what all of them check of the command.
"""

from __future__ import annotations

from collections.abc import Sequence

from compare.errors import UsageError
from compare.schema.environment import masked

COMMANDS = ("run", "aa", "verify", "scale", "collectives")
"""The commands that launch ranks, so a job can run them."""


def require_command(words: Sequence[str], *, secrets: str) -> None:
    """Require a command that launches ranks, and has no value of ``-x``, which may be a secret.

    ``secrets`` is the remedy: how ranks can receive such a value with this scheduler.

    Raises:
        UsageError: it is another command, or the value would be written into the job.
    """
    if not words or words[0] not in COMMANDS:
        raise UsageError(
            f"{words[0]} is not a command that can be submitted." if words else "There is nothing to submit.",
            remedy=f"Name one of {', '.join(COMMANDS)} after two dashes: compare submit -- run --backend ddp",
        )
    if masked(words) != list(words):
        raise UsageError(
            "The value of -x would be written into the job, where others can read it.", remedy=secrets
        )


def require_printable(values: Sequence[str]) -> None:
    """Require values without line breaks and control characters.

    Raises:
        UsageError: a value has one.
    """
    for value in values:
        if not value.isprintable():
            raise UsageError(
                "A control character would be written into the job.",
                found=repr(value),
                remedy="Leave it out, or submit from a folder of another name.",
            )


def flag_value(words: Sequence[str], flag: str) -> str | None:
    """Return the last value of a long flag: ``--flag value`` or ``--flag=value``. None without the flag.

    The flag, such as ``--budget``, must be written in full.
    """
    value = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            value = following
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value
