"""What a launcher is asked for, and what it answers: plain data, compared to the letter in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compare.hostfile import Host


@dataclass(frozen=True, slots=True)
class Request:
    """One launch of one arm: so many ranks of one program on these hosts."""

    executable: Path
    """The launcher, by its whole path: a bare name would fail on other hosts."""
    python: Path
    """The interpreter that every rank runs."""
    hosts: tuple[Host, ...]
    """Each with the number of ranks that it gets as its slots."""
    module: str
    """Python module that every rank runs."""
    arguments: tuple[str, ...]
    port: int
    """A port that was free on the first host a moment ago, for launchers that do not find their own."""
    environment: Mapping[str, str]
    """Set for every rank, over what it inherits."""
    interface: str
    """Network interface for all arms alike."""
    options: Mapping[str, bool | float | str] = field(default_factory=dict)
    """The arm's options: a launcher reads those that are flags of its own."""
    exported: tuple[str, ...] = ()
    """Names in ``environment`` that are the arm's own, for launchers that must be told what to pass on."""

    @property
    def ranks(self) -> int:
        """Number of processes in all."""
        return sum(host.slots for host in self.hosts)


@dataclass(frozen=True, slots=True)
class Command:
    """A program to execute, without a shell."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Over the allow-listed environment of the caller."""
