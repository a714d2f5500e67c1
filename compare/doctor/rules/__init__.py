"""Judge the facts about hosts by all rules, one pure function for each.

Where hosts differ, the most frequent value counts as right. Of equally frequent values, that of the first
host does. What breaks which launcher was tried on real hosts, and comments give the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compare.doctor.facts import LEVELS, ExaminedHost, Finding, Installation
from compare.doctor.rules import machine, network, software


def diagnose(
    hosts: Sequence[ExaminedHost], here: Installation, more: Iterable[Finding] = ()
) -> list[Finding]:
    """Return the findings about hosts that are to work together, the worst level first.

    Within a level they are in the order of the hosts. ``here`` is the Ringside of this machine, which every
    host must have. The caller's own findings, ``more``, are included.
    """
    found = [each.trouble for each in hosts if each.trouble]
    found += software.ringside(hosts, here)
    for rule in (*software.RULES, *network.RULES, *machine.RULES):
        found += rule(hosts)
    found += more
    order = {each.host.name: number for number, each in enumerate(hosts)}
    return sorted(found, key=lambda finding: (LEVELS.index(finding.level), order[finding.host]))
