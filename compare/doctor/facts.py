"""Define the records of an examination: facts and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from compare.schema.hosts import Host

Level = Literal["problem", "warning", "note"]
"""A problem breaks launches, or makes ranks differ.

A warning may do so, or slows them down.
"""
_Software = Literal["reach", "python", "ringside", "torch", "numpy", "horovod", "mpi"]
_Machine = Literal[
    "hostname", "network", "ports", "slots", "clock", "disk", "limits", "alike", "memory", "workload"
]
Topic = _Software | _Machine
LEVELS: tuple[Level, ...] = ("problem", "warning", "note")
STOPPING: frozenset[Topic] = frozenset({"reach", "python", "ringside", "torch"})
"""Problems with these break every arm."""
OLDEST_PYTHON = "3.11"


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface of a host."""

    name: str
    up: bool
    addresses: list[str] = []
    """Written as ``10.0.0.1/24``."""
    mtu: int = 1500


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that launches write to."""

    path: str
    free_bytes: int | None
    """None if the folder does not exist."""
    writable: bool = True


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """What loading a library showed."""

    facts: dict[str, Any] = {}
    problem: str = ""
    """Why it does not load."""
    missing: bool = False


class Mpirun(msgspec.Struct, frozen=True):
    """The mpirun that a launch would use, and what its ``--version`` prints."""

    path: str
    output: str


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts that ``checkup.look`` collects.

    Times are Unix times of the host's own clock.
    """

    began_at: float
    answered_at: float
    quick: bool = False
    """The slow checks were left out: GPUs, libraries, mpirun."""
    hostname: str
    resolved: list[str] = []
    """Addresses of its own name, as it resolves here."""
    not_its_own: list[str] = []
    """Those of these addresses that this host does not have."""
    resolve_seconds: float = 0.0
    peers: dict[str, list[str]] = {}
    """Addresses of the other hosts' names, as they resolve here."""
    interfaces: list[Interface] = []
    default_interface: str = ""
    cores: int
    core_quota: float | None = None
    """CPU time that the control group allows, in cores."""
    load: float = 0.0
    gpus: list[str] = []
    disks: list[Disk] = []
    python: str
    executable: str = ""
    machine: str = ""
    packages: dict[str, str] = {}
    ringside: str = ""
    ringside_path: str = ""
    ringside_sources: str = ""
    """Digest of its sources."""
    libraries: dict[str, Library] = {}
    mpirun: Mpirun | None = None
    open_files: int | None = None
    """The limit; None for no limit."""
    locked_memory_bytes: int | None = None
    infiniband: bool = False
    memory_reads_refused: str = ""
    """Why ranks may not read each other's memory; empty if they may."""

    def library(self, name: str) -> dict[str, Any]:
        """Return the facts of a library; none if it was not loaded."""
        return self.libraries.get(name, Library()).facts


class PortTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``checkup.meet``, which uses a port of the first host."""

    role: Literal["listens", "connects"]
    problem: str = ""
    connected: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One defect of a host, with the evidence and the fix."""

    level: Level
    topic: Topic
    host: str
    what: str
    found: str
    fix: str


class ExaminedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host with all that its examination showed."""

    host: Host
    facts: Facts | None = None
    trouble: Finding | None = None
    """Why there are no facts, or none of the requested Python."""
    seconds: float = 0.0
    clock_ahead_seconds: float = 0.0
    """How far its clock is ahead: the middle of the possible range."""
    clock_uncertain_seconds: float = 0.0
    met: PortTrial | None = None
    met_at: str = ""
    """The ``address:port`` of the trial."""

    @property
    def software(self) -> Facts | None:
        """Return the facts if the requested Python collected them."""
        return None if self.trouble else self.facts

    def problem(self, topic: Topic, what: str, found: str, fix: str) -> Finding:
        """Make a finding that breaks launches."""
        return self.finding("problem", topic, what, found, fix)

    def warning(self, topic: Topic, what: str, found: str, fix: str) -> Finding:
        """Make a finding that may break launches, or slows them down."""
        return self.finding("warning", topic, what, found, fix)

    def finding(self, level: Level, topic: Topic, what: str, found: str, fix: str) -> Finding:
        """Make a finding about this host."""
        return Finding(level=level, topic=topic, host=self.host.name, what=what, found=found, fix=fix)


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The Ringside of this machine, which every host must have."""

    version: str
    sources: str


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All examined hosts and their findings, the worst first."""

    here: Installation
    examined_at: str
    hosts: list[ExaminedHost]
    findings: list[Finding]

    def of(self, level: Level) -> list[Finding]:
        """Return the findings of one level."""
        return [finding for finding in self.findings if finding.level == level]


def with_facts(hosts: Iterable[ExaminedHost]) -> list[tuple[ExaminedHost, Facts]]:
    """Return the hosts that have facts, with these."""
    return [(each, each.facts) for each in hosts if each.facts]


def with_software(hosts: Iterable[ExaminedHost]) -> list[tuple[ExaminedHost, Facts]]:
    """Return the hosts whose software is known, with their facts."""
    return [(each, each.software) for each in hosts if each.software]


def usual(values: Iterable[str]) -> str:
    """Return the most frequent value that is not empty."""
    frequent = Counter(filter(None, values)).most_common(1)
    return frequent[0][0] if frequent else ""


def different(
    known: Sequence[tuple[ExaminedHost, Facts]], values: Sequence[str]
) -> Iterator[tuple[ExaminedHost, Facts, str, str]]:
    """Yield every host with an unusual value, its facts, and both values."""
    expected = usual(values)
    for (each, facts), value in zip(known, values, strict=True):
        if value != expected:
            yield each, facts, value, expected
