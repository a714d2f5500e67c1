"""Choose the network of the ranks from the addresses of the hosts."""

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
"""Maximum time to look up all names together."""
_LOOKUPS_AT_ONCE = 64


def require_distinct(machines: Sequence[tuple[Host, Ready]]) -> None:
    """Require that no two hosts are the same machine, with equal hostnames and addresses.

    Addresses alone do not decide, because containers on two machines may have the same ones.

    Raises:
        UsageError: two hosts are the same machine.
    """
    first: dict[tuple[str, str], Host] = {}
    for host, ready in machines:
        every = sorted(address for each in ready.addresses.values() for address in each)
        addresses = ", ".join(a for a in every if not ipaddress.ip_interface(a).is_loopback)
        known = first.setdefault((ready.hostname.lower(), addresses), host)
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
    """Choose the interface of all arms, and return it with its network and every host's address.

    The interface is the one asked for, or else the one over which the hosts are reached. Every host must have
    an interface of that name, with an address of its own. An address that all hosts share, as on docker0,
    leads to no other host.

    Args:
        addresses: lists of addresses, as 10.0.0.2/24, by host and then by interface.
        asked: the interface that the user named, or None.
        reached_at: the address at which every host was reached, in their order; empty where unknown.

    Raises:
        UsageError: no network fits, or several fit equally well.
    """
    hosts = list(addresses)
    names = [name for name in addresses[hosts[0]] if asked in {None, name}]
    found = [network for name in names for network in _on(name, list(addresses.values()))]
    if not found:
        what = f"The hosts share no network on {asked}." if asked else "The hosts share no network."
        raise UsageError(
            what,
            found="\n".join(f"{host}: {_listed(its)}" for host, its in list(addresses.items())[:8]),
            remedy="Name an interface with --interface that all hosts have, each with a different address.",
        )
    agree = [sum(a == b for a, b in zip(each.addresses, reached_at, strict=True)) for each in found]
    best = [each for each, count in zip(found, agree, strict=True) if count == max(agree)]
    if len(best) > 1:
        first, *others = best
        remedy = "All are on one interface. Name the hosts by their addresses in the network that you mean."
        if any(each.interface != first.interface for each in others):
            remedy = f"Name one: --interface {first.interface}"
        raise UsageError(
            "The hosts share more than one network, and none is preferred.",
            found="; ".join(f"{each.interface} in {each.network}" for each in best),
            remedy=remedy,
        )
    return best[0]


def network_of_one_machine(addresses: Mapping[str, Sequence[str]], *, asked: str | None) -> Network:
    """Return the network of one machine, on the loopback interface unless another is asked for.

    Raises:
        UsageError: this machine has no such interface that is up.
    """
    interface = asked or LOOPBACK
    if interface not in addresses:
        remedy = "Name one of these with --interface."
        if asked is None:
            remedy = f"Start it with `ip link set {LOOPBACK} up`, or name another --interface."
        raise UsageError(
            f"This machine has no interface {interface} that is up.",
            found=f"Up: {', '.join(addresses) or 'none'}.",
            remedy=remedy,
        )
    return Network(interface=interface)


def in_network(address: str, network: Network) -> bool:
    """Return whether an address such as 10.0.0.2/24 belongs to the network.

    Every address does if the hosts have no network in common and are routed to each other.
    """
    if network.network == network.interface:
        return True
    return ipaddress.ip_interface(address).ip in ipaddress.ip_network(network.network)


def addresses_of(names: Sequence[str], seconds: float = _LOOKUP_SECONDS) -> list[str]:
    """Return an IPv4 address of every name, in order; empty for a name without one.

    Names that are not found within ``seconds`` count as names without an address.
    """
    found, waiting = dict[str, str](), iter(names)

    def look_up() -> None:
        for name in waiting:
            with suppress(OSError, UnicodeError):
                found[name] = socket.gethostbyname(name)

    # A name server that hangs must not hold up an exit, so no pool: its threads are joined then.
    threads = [threading.Thread(target=look_up, daemon=True) for _ in names[:_LOOKUPS_AT_ONCE]]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [found.get(name, "") for name in names]


def _on(name: str, hosts: Sequence[Mapping[str, Sequence[str]]]) -> list[Network]:
    """Return the networks in which every host has an address of its own on one interface.

    If there is none, but every host has exactly one address, the hosts are assumed to be routed to each
    other. The network then has the interface's name.
    """
    own = [[ipaddress.ip_interface(a) for a in its.get(name, ())] for its in hosts]
    own = [[a for a in its if not (a.ip.is_loopback or a.ip.is_link_local)] for its in own]
    shared = {a.network for a in own[0] if a.network.prefixlen < a.max_prefixlen}
    found = []
    for network in sorted(shared, key=str):
        chosen = [next((str(a.ip) for a in its if a.ip in network), "") for its in own]
        if all(chosen) and len(set(chosen)) == len(chosen):
            found.append(Network(interface=name, network=str(network), addresses=tuple(chosen)))
    if not found and all(len(its) == 1 for its in own) and len({its[0].ip for its in own}) == len(own):
        found.append(Network(interface=name, network=name, addresses=tuple(str(its[0].ip) for its in own)))
    return found


def _listed(its: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name} {' '.join(found)}" for name, found in its.items() if found) or "no address"
