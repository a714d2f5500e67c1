"""Judge the names and networks of hosts, because all hosts must reach each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compare.doctor.facts import (
    ExaminedHost,
    Facts,
    Finding,
    Interface,
    Level,
    differing_hosts,
    hosts_with_facts,
)
from compare.schema.hosts import LOOPBACK
from compare.text import listed

_SLOW_LOOKUP_SECONDS = 1.0


class SharedNetwork(NamedTuple):
    """A network in which every host has its own address; each list has an entry for each host, in order."""

    network: str
    """Written as ``10.0.0.0/24``."""
    interfaces: list[str]
    addresses: list[str]
    mtus: list[str]


def hostname(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts named localhost, hosts whose own name does not resolve rightly, and slow name look-ups."""
    many = len(hosts) > 1
    for each, facts in hosts_with_facts(hosts):
        if many and (each.host.name.lower() == "localhost" or _is_loopback(each.host.name)):
            found = f"{each.host.source or 'The command'} names it {each.host.name}."
            fix = f"Use the name that the other hosts know: {facts.hostname}."
            yield each.problem("hostname", "Every other host takes this name for its own.", found, fix)
        yield from _own_name(each, facts, many=many)
        if facts.resolve_seconds > _SLOW_LOOKUP_SECONDS:
            found = f"A lookup took {facts.resolve_seconds:.1f} s."
            fix = "Correct /etc/resolv.conf there, or add the hosts to its /etc/hosts."
            yield each.warning("hostname", "Name lookups are slow.", found, fix)


def _own_name(each: ExaminedHost, facts: Facts, *, many: bool) -> Iterator[Finding]:
    # Launchers use the name's first IPv4 address; Debian writes 127.0.1.1 into /etc/hosts.
    first = next((address for address in facts.resolved if ":" not in address), "".join(facts.resolved[:1]))
    found, own = f"{facts.hostname} resolves to {', '.join(facts.resolved)} there.", _main_address(facts)
    if not first:
        fix = f"Add {facts.hostname} to /etc/hosts there, with {own}."
        found = f"{facts.hostname} resolves to no address there."
        level: Level = "warning" if many else "note"
        yield each.finding(level, "hostname", "The host cannot resolve its own name.", found, fix)
    elif many and _is_loopback(first):
        # Horovod's Gloo and torch announce this address; the others would connect to themselves.
        fix = f"In its /etc/hosts, give {facts.hostname} {own} instead."
        yield each.problem("hostname", "The host's own name resolves to its loopback address.", found, fix)
    elif facts.wrong_addresses:
        found = (
            f"{facts.hostname} resolves to {', '.join(facts.wrong_addresses)}, which the host does not have."
        )
        fix = f"Correct its entry in DNS or /etc/hosts, so that it leads to {own}."
        yield each.warning("hostname", "The host's own name resolves to a wrong address.", found, fix)


def same_name(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find one machine under two names, and two machines with one name."""
    first: dict[str, tuple[ExaminedHost, Facts]] = {}
    for each, facts in hosts_with_facts(hosts):
        other, known = first.setdefault(facts.hostname.lower(), (each, facts))
        found = f"{each.host.name} and {other.host.name} both have the hostname {facts.hostname}."
        if other is each:
            continue
        if _own_addresses(known) & _own_addresses(facts):
            what, fix = "Two names lead to the same machine.", "Name it once, with all its slots."
        else:
            # horovodrun and mpirun take them for one host.
            what = "Two hosts have the same hostname."
            fix = "Give each host its own name with hostnamectl set-hostname."
        yield each.problem("hostname", what, found, fix)


def peers(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts that resolve the name of another host to no address, or only to loopback addresses."""
    fix = "Add the others to its /etc/hosts, or to DNS."
    for each, facts in hosts_with_facts(hosts):
        own_names = {each.host.name, facts.hostname}
        others = {name: addresses for name, addresses in facts.peers.items() if name not in own_names}
        unknown = [name for name, addresses in others.items() if not addresses]
        looped = [n for n, addresses in others.items() if addresses and all(map(_is_loopback, addresses))]
        for names, what in (
            (unknown, "Names of other hosts do not resolve."),
            (looped, "Names of other hosts resolve to its loopback address."),
        ):
            if names:
                yield each.warning("hostname", what, f"{listed(names)}.", fix)


def loopback(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts whose loopback interface is not up, because processes of one host connect over it."""
    for each, facts in hosts_with_facts(hosts):
        up = [address for interface in facts.interfaces if interface.up for address in interface.addresses]
        if facts.interfaces and not any(ipaddress.ip_interface(address).is_loopback for address in up):
            found = "Ranks of one host, and the launchers there, connect over it."
            fix = f"ip link set {LOOPBACK} up"
            yield each.problem("network", "The loopback interface is not up.", found, fix)


def network(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts without a network, hosts without a common network, and interfaces that differ.

    An interface differs if its name or its MTU is not that of most hosts.
    """
    known = _with_interfaces(hosts)
    if len(known) == 1:
        return
    cut_off = [each for each, facts in known if not _own_addresses(facts)]
    for each in cut_off:
        fix = "Bring up another interface and give it an address, with `ip link` and `ip address`."
        found = "The host has no other address."
        yield each.problem("network", "Only the loopback interface is up.", found, fix)
    if cut_off or not known:
        return
    shared = shared_network(hosts)
    if shared is None:
        found = "; ".join(f"{each.host.name}: {_addresses(facts)}" for each, facts in known[:4])
        fix = "If a router joins their networks, --ports tests the connection. Otherwise see `ip address`."
        yield known[0][0].warning("network", "No network is common to all hosts.", found, fix)
        return
    at = {each.host.name: name for (each, _), name in zip(known, shared.interfaces, strict=True)}
    for each, _, name, expected in differing_hosts(known, shared.interfaces):
        # One name goes to all ranks: GLOO_SOCKET_IFNAME, btl_tcp_if_include.
        found = f"It is {name} in {shared.network}, but {expected} on other hosts."
        fix = f"Rename it: ip link set {name} name {expected}."
        yield each.warning("network", "The interface has another name.", found, fix)
    for each, _, mtu, expected in differing_hosts(known, shared.mtus):
        # Small messages arrive, large ones vanish: launches hang in their first all-reduce.
        found = f"It is {mtu} on {at[each.host.name]}, but {expected} on other hosts."
        fix = f"ip link set {at[each.host.name]} mtu {expected}"
        yield each.warning("network", "The interface has another MTU.", found, fix)


def shared_address(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find addresses that several machines have, such as that of a container bridge.

    Open MPI may connect to such an address, reach its own machine, and hang.
    """
    known = hosts_with_facts(hosts)
    if len({facts.hostname for _, facts in known}) < len(known):
        return  # ``same_name`` reports one machine under two names
    holders: dict[str, list[tuple[ExaminedHost, str]]] = {}
    for each, facts in known:
        for interface, address in _networks(facts).values():
            holders.setdefault(address, []).append((each, interface.name))
    for address, sharing in holders.items():
        for each, name in sharing if len(sharing) > 1 else ():
            others = listed(other.host.name for other, _ in sharing if other is not each)
            what = f"Other hosts have the same address {address}."
            fix = f"Name the interface that connects them: --engine auto:interface=NAME; or take {name} down."
            yield each.warning("network", what, f"It is on {name} here, and also on {others}.", fix)


def ports(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts that could not listen or connect when a port was tried, or got too few connections."""
    trials = [(each, each.port_trial) for each in hosts if each.port_trial]
    others = sum(trial.role == "connects" for _, trial in trials)
    for each, trial in trials:
        if trial.role == "listens" and trial.problem:
            fix = "Try again, which chooses another port, or find what holds this one with `ss -ltnp`."
            yield each.problem("ports", f"Cannot listen at {each.port_address}.", trial.problem, fix)
        elif trial.problem:
            fix = "Open all ports between the hosts in their firewalls (nft, ufw, security groups). "
            fix += "If the host gave no answer, try again."
            yield each.problem("ports", f"Cannot connect to {each.port_address}.", trial.problem, fix)
        elif trial.role == "listens" and trial.connected < others:
            fix = "Look at the problems of the other hosts. If they have none, try again."
            found = f"{trial.connected} of {others} connected."
            yield each.finding(
                "note", "ports", f"Not all hosts connected to {each.port_address}.", found, fix
            )


def shared_network(hosts: Sequence[ExaminedHost]) -> SharedNetwork | None:
    """Return a network in which every host has an address of its own; None if there is no such network.

    Hosts whose interfaces are unknown are left out. Of several networks, that of the first host's default
    route is preferred, and after it the first in the order of that host's interfaces.
    """
    facts = [facts for _, facts in _with_interfaces(hosts)]
    if not facts:
        return None
    networks = [_networks(each) for each in facts]
    default = facts[0].default_interface
    for name in sorted(networks[0], key=lambda name: networks[0][name][0].name != default):
        members = [each[name] for each in networks if name in each]
        interfaces, addresses = [interface for interface, _ in members], [address for _, address in members]
        if len(set(addresses)) == len(facts):
            return SharedNetwork(
                name, [i.name for i in interfaces], addresses, [str(i.mtu) for i in interfaces]
            )
    return None


def _with_interfaces(hosts: Sequence[ExaminedHost]) -> list[tuple[ExaminedHost, Facts]]:
    return [(each, facts) for each, facts in hosts_with_facts(hosts) if facts.interfaces]


def _networks(facts: Facts) -> dict[str, tuple[Interface, str]]:
    """Return a host's interface and address in each of its networks, by networks such as ``10.0.0.0/24``.

    Interfaces that are down, and loopback and link-local addresses, are left out.
    """
    networks: dict[str, tuple[Interface, str]] = {}
    for interface in facts.interfaces:
        for written in interface.addresses if interface.up else ():
            address = ipaddress.ip_interface(written)
            if not (address.is_loopback or address.is_link_local):
                networks.setdefault(str(address.network), (interface, str(address.ip)))
    return networks


def _own_addresses(facts: Facts) -> set[str]:
    return {address for _, address in _networks(facts).values()}


def _addresses(facts: Facts) -> str:
    return ", ".join(f"{address} on {interface.name}" for interface, address in _networks(facts).values())


def _main_address(facts: Facts) -> str:
    """Return "the address …" to which the host's name should resolve; "its own address" if it has none."""
    networks = sorted(_networks(facts).values(), key=lambda pair: pair[0].name != facts.default_interface)
    return f"the address {networks[0][1]}" if networks else "its own address"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


RULES = (hostname, same_name, peers, loopback, network, shared_address, ports)
