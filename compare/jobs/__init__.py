"""Write jobs in which a scheduler runs a command of Ringside later.

This module has the checks that are common to all schedulers. The package connects to no host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compare.errors import UsageError
from compare.schema.environment import hide_exports

COMMANDS = ("run", "verify", "scale", "collectives")
"""The commands that a job can run, because they launch ranks."""


class Resources(NamedTuple):
    """The resources that a job asks for; CPUs, GPUs and memory are those of one node.

    The fields are named like the flags of ``ringside submit``. A node of Kubernetes is a worker's pod.
    """

    nodes: int
    ranks_per_node: int
    minutes: int
    """Time limit of the whole job in minutes."""
    partition: str = ""
    """Name of Slurm's partition; empty for the default."""
    option: Sequence[str] = ()
    """Further options of sbatch, such as ``--gres=gpu:4``."""
    image: str = ""
    cpus: int | None = None
    """Number of CPUs; None for one CPU for each rank."""
    gpus: int = 0
    name: str = ""
    """Name of the job; empty for a name that is made from the command."""
    namespace: str = ""
    """Kubernetes' namespace; empty for the default of kubectl."""
    memory: str = "8Gi"
    """Memory, written with a unit as in 8Gi."""
    shm: str = "1Gi"
    """Size of /dev/shm, which is a part of the memory."""


def require_fit(words: Sequence[str], values: Sequence[str], *, secrets_remedy: str) -> None:
    """Require that a job can run a command line, and that nothing unfit would be written into the job.

    ``words`` is the command line without the program's name. ``values`` are the texts that may have no line
    break or other unprintable character. ``secrets_remedy`` ends the error for a value of ``-x``, and states
    how ranks can receive such a value with this scheduler.

    Raises:
        UsageError: the command launches no ranks, has a value of ``-x``, which may be a secret, or a value
            cannot be printed.
    """
    if not words or words[0] not in COMMANDS:
        raise UsageError(
            f"{words[0]} is not a command that can be submitted." if words else "There is nothing to submit.",
            remedy=f"Name one of {', '.join(COMMANDS)} after two dashes, as in "
            "`ringside submit -- run --backend ddp`.",
        )
    if hide_exports(words) != list(words):
        raise UsageError(
            "The value of -x would be written into the job, where others can read it.", remedy=secrets_remedy
        )
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
