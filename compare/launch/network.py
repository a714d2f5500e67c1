"""Choose the network over which the ranks communicate, from the addresses of the hosts."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from compare.errors import UsageError
from compare.launch.agent.protocol import Ready
from compare.schema.hosts import LOOPBACK, Host, Network

_LOOKUP_SECONDS = 10.0
"""Maximum time to look up the addresses of all names together."""
_LOOKUPS_AT_ONCE = 64
"""Maximum number of names that are looked up at the same time."""


def require_distinct(machines: Sequence[tuple[Host, Ready]]) -> None:
    """Require that no two hosts are the same machine, with equal hostnames and addresses.

    ``machines`` has each host with the first message of its agent. Addresses alone do not decide, because
    containers on two machines may have the same ones.

    Raises:
        UsageError: two hosts are the same machine.
    """
    host_of_machine: dict[tuple[str, str], Host] = {}
    for host, ready in machines:
        every = sorted(address for each in ready.addresses.values() for address in each)
        addresses = ", ".join(a for a in every if not ipaddress.ip_interface(a).is_loopback)
        known = host_of_machine.setdefault((ready.hostname.lower(), addresses), host)
        if addresses and known is not host:
            raise UsageError(
                f"{host.source}: {host.name} is the same machine as {known.name}.".removeprefix(": "),
                found=f"Both are {ready.hostname} with {addresses}.",
                remedy="Name it once, with all its slots: "
                f"'{known.destination} slots={known.slots + host.slots}'.",
            )


def choose_network(
    addresses: Mapping[str, Mapping[str, Sequence[str]]], *, asked: str | None, reached_at: Sequence[str]
) -> Network:
    """Return the network that all arms use: its interface, its range and every host's address in it.

    The interface is the one asked for, or else the one over which the hosts are reached. Every host must have
    an interface of that name, with an address of its own. An address that all hosts share, as on docker0,
    does not lead to another host.

    Args:
        addresses: lists of addresses, as 10.0.0.2/24, by host and then by interface.
        asked: the interface that the user named, or None.
        reached_at: the address to which each host's name resolves, in the order of hosts; empty if to none.

    Raises:
        UsageError: no network fits, or several fit equally well.
    """
    hosts = list(addresses)
    interfaces = [name for name in addresses[hosts[0]] if asked in {None, name}]
    shared = [each for name in interfaces for each in _shared_networks(name, list(addresses.values()))]
    if not shared:
        what = f"The hosts share no network on {asked}." if asked else "The hosts share no network."
        raise UsageError(
            what,
            found="\n".join(f"{host}: {_listed(of_host)}" for host, of_host in list(addresses.items())[:8]),
            remedy="Name an interface that all hosts have, each with a different address: "
            "--engine auto:interface=NAME",
        )
    matches = [sum(a == b for a, b in zip(each.addresses, reached_at, strict=True)) for each in shared]
    best = [each for each, count in zip(shared, matches, strict=True) if count == max(matches)]
    if len(best) > 1:
        first, *others = best
        remedy = "All are on one interface. Name the hosts by their addresses in the network that you mean."
        if any(each.interface != first.interface for each in others):
            remedy = f"Name one: --engine auto:interface={first.interface}"
        raise UsageError(
            "The hosts share more than one network, and none is preferred.",
            found="; ".join(f"{each.interface} in {each.network}" for each in best),
            remedy=remedy,
        )
    return best[0]


def network_of_one_machine(addresses: Mapping[str, Sequence[str]], *, asked: str | None) -> Network:
    """Return the network of ranks that are all on this machine, on the loopback interface or ``asked``.

    ``addresses`` has the machine's addresses by the interfaces that are up. ``asked`` is the interface that
    the user named, or None.

    Raises:
        UsageError: this machine has no such interface that is up.
    """
    interface = asked or LOOPBACK
    if interface not in addresses:
        remedy = "Name one of these: --engine auto:interface=NAME"
        if asked is None:
            remedy = f"Start it with `ip link set {LOOPBACK} up`, or name another interface."
        raise UsageError(
            f"This machine has no interface {interface} that is up.",
            found=f"Up: {', '.join(addresses) or 'none'}.",
            remedy=remedy,
        )
    return Network(interface=interface)


def in_network(address: str, network: Network) -> bool:
    """Return whether an address such as 10.0.0.2/24 belongs to the network.

    If the hosts share no range of addresses, but are routed to each other, every address belongs to it.
    """
    if network.network == network.interface:
        return True
    return ipaddress.ip_interface(address).ip in ipaddress.ip_network(network.network)


def addresses_of(names: Sequence[str], seconds: float = _LOOKUP_SECONDS) -> list[str]:
    """Return an IPv4 address of every host name, in order; an empty text for a name without one.

    Names that are not found within ``seconds`` count as names without an address.
    """
    address_of, waiting = dict[str, str](), iter(names)

    def look_up() -> None:
        for name in waiting:
            with suppress(OSError, UnicodeError):
                address_of[name] = socket.gethostbyname(name)

    # A name server that hangs must not hold up an exit, so no pool: its threads are joined then.
    threads = [threading.Thread(target=look_up, daemon=True) for _ in names[:_LOOKUPS_AT_ONCE]]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [address_of.get(name, "") for name in names]


def _shared_networks(interface: str, hosts: Sequence[Mapping[str, Sequence[str]]]) -> list[Network]:
    """Return the networks in which every host has an address of its own on this interface.

    ``hosts`` has the addresses of each host by interface. If there is no such network, but every host has
    exactly one address there, the hosts are assumed to be routed to each other. The only network then has
    the interface's name. The list is empty if neither is the case.
    """
    by_host = [[ipaddress.ip_interface(a) for a in host.get(interface, ())] for host in hosts]
    by_host = [[a for a in each if not (a.ip.is_loopback or a.ip.is_link_local)] for each in by_host]
    ranges = {a.network for a in by_host[0] if a.network.prefixlen < a.max_prefixlen}
    networks = []
    for range_ in sorted(ranges, key=str):
        chosen = [next((str(a.ip) for a in each if a.ip in range_), "") for each in by_host]
        if all(chosen) and len(set(chosen)) == len(chosen):
            networks.append(Network(interface=interface, network=str(range_), addresses=tuple(chosen)))
    if not networks and all(len(each) == 1 for each in by_host):
        routed = tuple(str(each[0].ip) for each in by_host)
        if len(set(routed)) == len(routed):
            networks.append(Network(interface=interface, network=interface, addresses=routed))
    return networks


def _listed(addresses: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name} {' '.join(each)}" for name, each in addresses.items() if each) or "no address"
