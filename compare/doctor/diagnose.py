"""Judge the facts about hosts by all rules. Pure.

If hosts differ, the majority is right; without a majority the first host is. What breaks which launcher
was tried on real hosts; the comments in ``rules/`` tell the results.
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
    """Judge hosts that are to work together, and add ``more`` findings.

    The worst findings come first, then the order is that of the hosts.
    """
    found = [each.trouble for each in hosts if each.trouble]
    found += software.ringside(hosts, here)
    found += (finding for rule in _RULES for finding in rule(hosts))
    found += more
    order = {each.host.name: number for number, each in enumerate(hosts)}
    return sorted(found, key=lambda finding: (LEVELS.index(finding.level), order[finding.host]))
