"""Define the schema of a scaling series: runs of the same arms with different numbers of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from compare.errors import UsageError
from compare.schema.config import require_count
from compare.schema.results import Run

SCALE_SCHEMA_VERSION = 1
Mode: TypeAlias = Literal["weak", "strong"]
"""The kind of scaling: ``weak`` keeps the batch of each rank, and ``strong`` keeps the global batch."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``scale.json``; the run of each number of ranks is in a folder beside this file."""

    schema_version: int = SCALE_SCHEMA_VERSION
    ringside_version: str
    started_at: str
    """Start of the command, in ISO 8601 with the time zone."""
    command: list[str]
    mode: Mode
    counts: Annotated[list[int], msgspec.Meta(min_length=2)]
    """The numbers of ranks in ascending order; efficiency is relative to the first."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A scaling series with all of its runs."""

    series: Series
    runs: dict[int, Run]
    """The runs, by their numbers of ranks."""


def folder_of(directory: Path, count: int) -> Path:
    """Return the folder of the run with ``count`` ranks, which is in the series' folder ``directory``."""
    return directory / f"np{count}"


def read_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of ranks in a text such as ``1,2,4``, in ascending order and each once.

    Raises:
        UsageError: there are fewer than two different numbers, or one is out of range.
    """
    try:
        counts = tuple(sorted({int(count) for count in text.split(",")}))
    except ValueError:
        counts = ()
    if len(counts) < 2:  # noqa: PLR2004 -- one count has nothing to be compared with
        raise UsageError(
            f"-np/--num-proc cannot be {text}.",
            remedy="Name two or more numbers of ranks: -np 1,2,4.",
        )
    for count in counts:
        require_count("-np/--num-proc", count)
    return counts


def batch_of(mode: Mode, given: int, count: int) -> int:
    """Return the batch size of each of ``count`` ranks; ``given`` is the value of ``--batch-size``.

    Raises:
        UsageError: with ``strong``, the ranks cannot share the global batch equally.
    """
    if mode == "weak":
        return given
    if given % count:
        raise UsageError(
            f"{count} ranks cannot share a global batch of {given} samples equally.",
            found="With --strong, --batch-size is the batch of all ranks together.",
            remedy="Use a --batch-size that every number of ranks in -np divides.",
        )
    return given // count
