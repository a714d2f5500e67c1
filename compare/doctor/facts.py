"""Define the records of an examination of hosts: facts and findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from compare.errors import HostError
from compare.schema.hosts import Host

Level = Literal["problem", "warning", "note"]
"""How bad a finding is.

A problem breaks launches, or makes ranks run different software. A warning may break launches, or slows them
down. A note only informs.
"""
_Software = Literal["reach", "python", "ringside", "torch", "numpy", "horovod", "mpi"]
_Machine = Literal[
    "hostname", "network", "ports", "slots", "load", "clock", "disk", "limits", "alike", "memory", "workload"
]
Topic = _Software | _Machine
"""What a finding is about."""
LEVELS: tuple[Level, ...] = ("problem", "warning", "note")
STOPPING: frozenset[Topic] = frozenset({"reach", "python", "ringside", "torch"})
"""Topics whose problems break every arm."""
OLDEST_PYTHON = "3.11"


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface of a host."""

    name: str
    up: bool
    addresses: list[str] = []
    """Addresses with the length of their network's prefix, such as ``10.0.0.1/24``."""
    mtu: int = 1500


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that launches write to."""

    path: str
    free_bytes: int | None
    """Free space on the folder's disk; None if the folder does not exist or cannot be reached."""
    writable: bool = True


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of loading a library."""

    facts: dict[str, Any] = {}
    """The facts that ``backends.probe`` printed; empty if the library does not load."""
    problem: str = ""
    """Why the library does not load; empty if it loads or is not installed."""
    missing: bool = False
    """Whether the library is not installed."""
    unanswered: str = ""
    """How long it was waited for in vain, and beside which load; nothing is known of the library then."""


class Mpirun(msgspec.Struct, frozen=True):
    """The mpirun that a launch would use, and what its ``--version`` prints."""

    path: str
    output: str


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts about a host that ``checkup.collect_facts`` collects on it.

    ``began_at`` and ``answered_at`` are Unix times of the host's own clock.
    """

    began_at: float
    answered_at: float
    quick: bool = False
    """Whether the slow checks were left out: GPUs, libraries, mpirun."""
    hostname: str
    resolved: list[str] = []
    """The addresses to which the host resolves its own ``hostname``."""
    wrong_addresses: list[str] = []
    """The addresses in ``resolved`` that the host does not have."""
    resolve_seconds: float = 0.0
    """Time that all name look-ups took together, at most about five seconds."""
    peers: dict[str, list[str]] = {}
    """The addresses to which the host resolves the names of other hosts, by these names."""
    interfaces: list[Interface] = []
    """The network interfaces; empty only if they are unknown, because every host has a loopback interface."""
    default_interface: str = ""
    """Name of the default route's interface; empty without such a route."""
    cores: int
    core_quota: float | None = None
    """CPU time that the control group allows, in cores; None without a limit."""
    load: float = 0.0
    """Load average over the last minute."""
    gpus: list[str] = []
    """Lines of ``nvidia-smi -L``, such as ``GPU 0: NVIDIA H200``."""
    disks: list[Disk] = []
    python: str
    executable: str = ""
    machine: str = ""
    """Architecture of the processor, such as ``x86_64``."""
    packages: dict[str, str] = {}
    ringside: str = ""
    ringside_path: str = ""
    ringside_sources: str = ""
    """Digest of Ringside's sources; empty if Ringside is missing."""
    libraries: dict[str, Library] = {}
    mpirun: Mpirun | None = None
    open_files: int | None = None
    """Limit on the open files of a process; None for no limit."""
    locked_memory_bytes: int | None = None
    """Limit on the locked memory of a process; None for no limit."""
    infiniband: bool = False
    memory_reads_refused: str = ""
    """Why ranks may not read each other's memory; empty if they may."""

    def library(self, name: str) -> dict[str, Any]:
        """Return the facts about a library; empty if it was not loaded, or does not load."""
        return self.libraries.get(name, Library()).facts


class PortTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``checkup.try_port`` on one host: whether hosts can connect to a port of the first."""

    role: Literal["listens", "connects"]
    problem: str = ""
    """Why the host could not listen or connect; empty if it could."""
    connected: int = 0
    """Number of hosts that connected, on the host that listens; otherwise 0."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One defect of a host, or a note about it, with the evidence and the fix."""

    level: Level
    topic: Topic
    host: str
    what: str
    """The defect or the note, as one sentence."""
    found: str
    """The evidence: what was found on the host."""
    fix: str


class ExaminedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host with all that its examination showed."""

    host: Host
    facts: Facts | None = None
    trouble: Finding | None = None
    """Why there are no facts, or why another Python than the requested one collected them."""
    seconds: float = 0.0
    """Time until the host answered."""
    clock_ahead_seconds: float = 0.0
    """How far the host's clock is ahead of this machine's: the middle of the possible range."""
    clock_uncertain_seconds: float = 0.0
    """Half of the width of that range."""
    port_trial: PortTrial | None = None
    """The host's result in the trial of a port; None without a trial."""
    port_address: str = ""
    """The ``address:port`` of the trial."""

    @property
    def software(self) -> Facts | None:
        """Return the facts if the requested Python collected them, otherwise None."""
        return None if self.trouble else self.facts

    def problem(self, topic: Topic, what: str, found: str, fix: str) -> Finding:
        """Return a finding about this host that breaks launches."""
        return self.finding("problem", topic, what, found, fix)

    def warning(self, topic: Topic, what: str, found: str, fix: str) -> Finding:
        """Return a finding about this host that may break launches, or slows them down."""
        return self.finding("warning", topic, what, found, fix)

    def finding(self, level: Level, topic: Topic, what: str, found: str, fix: str) -> Finding:
        """Return a finding about this host: its defect, what was found, and the fix."""
        return Finding(level=level, topic=topic, host=self.host.name, what=what, found=found, fix=fix)


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The Ringside of this machine, which every host must have."""

    version: str
    sources: str
    """Digest of its sources, comparable with ``Facts.ringside_sources``."""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All examined hosts and their findings, with the worst findings first."""

    here: Installation
    examined_at: str
    hosts: list[ExaminedHost]
    findings: list[Finding]

    @property
    def exit_code(self) -> int:
        """Return the exit code of a ``HostError`` if any finding is a problem, otherwise 0."""
        return HostError.exit_code if self.of("problem") else 0

    def of(self, level: Level) -> list[Finding]:
        """Return the findings of one level."""
        return [finding for finding in self.findings if finding.level == level]


def grouped(findings: Iterable[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return each distinct finding, with its ``host`` left empty, and the names of all hosts that have it."""
    hosts: dict[Finding, list[str]] = {}
    for finding in findings:
        hosts.setdefault(msgspec.structs.replace(finding, host=""), []).append(finding.host)
    return list(hosts.items())


def hosts_with_facts(hosts: Iterable[ExaminedHost]) -> list[tuple[ExaminedHost, Facts]]:
    """Return the hosts that have facts, each with its facts, in the same order."""
    return [(each, each.facts) for each in hosts if each.facts]


def hosts_with_software(hosts: Iterable[ExaminedHost]) -> list[tuple[ExaminedHost, Facts]]:
    """Return the hosts whose requested Python collected their facts, each with these facts."""
    return [(each, each.software) for each in hosts if each.software]


def most_frequent(values: Iterable[str]) -> str:
    """Return the most frequent value that is not empty, or the first of several; empty if all are empty."""
    counts = Counter(filter(None, values)).most_common(1)
    return counts[0][0] if counts else ""


def differing_hosts(
    known: Sequence[tuple[ExaminedHost, Facts]], values: Sequence[str]
) -> Iterator[tuple[ExaminedHost, Facts, str, str]]:
    """Yield each host whose value is not the most frequent one, with its facts and these two values.

    ``values`` has one value for each of the ``known`` hosts.
    """
    expected = most_frequent(values)
    for (each, facts), value in zip(known, values, strict=True):
        if value != expected:
            yield each, facts, value, expected
