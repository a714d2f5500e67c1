"""Check hosts before a run, and keep the findings to explain a failure of the run."""

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
    """A function that ``check_beforehand`` returns, and that gives the findings of this check."""

    def __call__(self, *, failed: bool) -> Findings:
        """Return the findings that may explain a failed run, or those to print at the start of a run."""


_START_SECONDS = 0.2
"""Maximum wait for the check of this machine before a run."""
_FAILURE_SECONDS = 6.0
"""Maximum wait for the same check after a failure; its name look-ups may take five seconds."""
_REPORTED_HERE: frozenset[Topic] = frozenset({"disk", "limits"})
"""Topics that are printed before a run on this machine only.

Others are left out: the table of results itself reports ranks without a core, and refused reads of memory.
"""


def check_beforehand(hosts: Sequence[Host], *, carrier: Carrier) -> Beforehand:
    """Check hosts before a run, and return a function that gives the findings.

    If another host takes part, ``quick_check`` checks all hosts now. Otherwise a thread checks this machine,
    so that the run can start at once.

    Raises:
        HostError: names every host that cannot be used, each with its fix.
        UnavailableError: the carrier's program is missing on this machine.
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
