"""Judge the facts about hosts by all rules, without side effects.

Where hosts differ, the most frequent value counts as right. Of equally frequent values, that of the first
host does. What breaks which launcher was tried on real hosts, and comments in ``rules/`` give the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compare.doctor.facts import LEVELS, ExaminedHost, Finding, Installation
from compare.doctor.rules import machine, network, software

_RULES = (
    *(software.python, software.packages, software.libraries, software.horovod, software.mpi, software.mpich),
    *(
        network.hostname,
        network.same_name,
        network.peers,
        network.loopback,
        network.network,
        network.shared_address,
    ),
    *(
        network.ports,
        machine.slots,
        machine.clock,
        machine.disk,
        machine.limits,
        machine.memory,
        machine.alike,
    ),
)


def diagnose(
    hosts: Sequence[ExaminedHost], here: Installation, more: Iterable[Finding] = ()
) -> list[Finding]:
    """Return the findings about hosts that are to work together, the worst level first.

    Within a level they are in the order of the hosts. ``here`` is the Ringside of this machine, which every
    host must have. The caller's own findings, ``more``, are included.
    """
    found = [each.trouble for each in hosts if each.trouble]
    found += software.ringside(hosts, here)
    found += (finding for rule in _RULES for finding in rule(hosts))
    found += more
    order = {each.host.name: number for number, each in enumerate(hosts)}
    return sorted(found, key=lambda finding: (LEVELS.index(finding.level), order[finding.host]))
