"""Judge the facts about hosts by all rules, one pure function for each.

Where hosts differ, the most frequent value counts as right. Among equally frequent values, the first host's
counts. Comments tell what breaks which launcher, as it was found on real hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compare.doctor.facts import LEVELS, ExaminedHost, Finding, Installation
from compare.doctor.rules import machine, network, software


def diagnose(
    hosts: Sequence[ExaminedHost], here: Installation, more: Iterable[Finding] = ()
) -> list[Finding]:
    """Return the findings about hosts that are to work together, with the worst level first.

    Within a level they are in the order of the hosts. ``here`` is the Ringside of this machine, which every
    host must have. Findings that the caller has already, ``more``, are included.
    """
    findings = [each.trouble for each in hosts if each.trouble]
    findings += software.ringside(hosts, here)
    for rule in (*software.RULES, *network.RULES, *machine.RULES):
        findings += rule(hosts)
    findings += more
    order = {each.host.name: number for number, each in enumerate(hosts)}
    return sorted(findings, key=lambda finding: (LEVELS.index(finding.level), order[finding.host]))
