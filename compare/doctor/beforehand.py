"""Check hosts before a run, and keep the findings for its failures."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from compare import __version__
from compare.doctor import checkup
from compare.doctor.diagnose import diagnose
from compare.doctor.examine import quick_check
from compare.doctor.facts import ExaminedHost, Facts, Finding, Installation, Topic
from compare.launch.engines import Carrier
from compare.schema.hosts import Host, is_local

Findings: TypeAlias = list[Finding]


class Beforehand(Protocol):
    """Returns what was found."""

    def __call__(self, *, failed: bool) -> Findings:
        """Return what may explain a failure, or else what the start reports."""


_START_SECONDS = 0.2
"""Maximum wait for the check of this machine before a run."""
_FAILURE_SECONDS = 6.0
"""Maximum wait for it after a failure; name look-ups take five."""
_REPORTED_HERE: frozenset[Topic] = frozenset({"disk", "limits"})
"""What is worth a line before a run on one machine.

A table has lines for ranks without a core, and for refused reads.
"""


def check_beforehand(hosts: Sequence[Host], *, carrier: Carrier) -> Beforehand:
    """Check hosts as ``quick_check`` does; this machine alone without a wait.

    Raises:
        HostError: names every host that cannot be used, each with its fix.
        UnavailableError: the carrier's program is missing here.
    """
    if not all(map(is_local, hosts)):
        _, found = quick_check(hosts, carrier=carrier)
        return lambda *, failed: found  # noqa: ARG005 -- they are worth a line at both times
    found = []
    thread = threading.Thread(target=lambda: found.extend(_look_here(hosts[0])), daemon=True)
    thread.start()

    def read(*, failed: bool) -> Findings:
        thread.join(_FAILURE_SECONDS if failed else _START_SECONDS)
        return [finding for finding in found if failed or finding.topic in _REPORTED_HERE]

    return read


def _look_here(host: Host) -> Findings:
    facts = msgspec.convert(checkup.look(quick=True), Facts)
    here = Installation(version=__version__, sources=facts.ringside_sources)
    found = diagnose([ExaminedHost(host=host, facts=facts)], here)
    return [finding for finding in found if finding.level != "note"]
