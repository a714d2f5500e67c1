"""Check what a user submits to a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from compare.errors import UsageError
from compare.schema.environment import masked

COMMANDS = ("run", "aa", "verify", "scale", "collectives")
"""The commands that launch ranks."""


def require_command(words: Sequence[str], *, secrets: str) -> None:
    """Require a command that launches ranks, without a value of ``-x``.

    ``secrets`` is how ranks of this scheduler receive such a value.

    Raises:
        UsageError: it is another command, or a value would be written down.
    """
    if not words or words[0] not in COMMANDS:
        raise UsageError(
            "There is nothing to submit." if not words else f"{words[0]} is no command to submit.",
            remedy=f"Name one of {', '.join(COMMANDS)} after two dashes: compare submit -- run --backend ddp",
        )
    if masked(words) != list(words):
        raise UsageError("A value of -x would be written into the job.", remedy=secrets)


def require_printable(values: Sequence[str]) -> None:
    """Require values of one line without control characters.

    Raises:
        UsageError: one has another line, or a control character.
    """
    for value in values:
        if not value.isprintable():
            raise UsageError(
                "A control character would be written into the job.",
                found=repr(value),
                remedy="Leave it out, or submit from a folder of another name.",
            )


def names_flag(words: Sequence[str], flag: str) -> bool:
    """Return whether a command line gives a long flag."""
    return flag_value(words, flag) is not None


def flag_value(words: Sequence[str], flag: str) -> str | None:
    """Return the value of a long flag; None without it."""
    value = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            value = following
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value
