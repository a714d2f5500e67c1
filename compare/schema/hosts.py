"""Define the hosts of a run, and the network over which their ranks communicate."""

from __future__ import annotations

import functools
import ipaddress
import itertools
import math
import re
import socket
from collections.abc import Iterable, Sequence

import msgspec

from compare.errors import UsageError
from compare.text import counted

MAX_SLOTS = 65_536
"""Maximum number of slots of a host, far above any real one."""
KEYS = ("slots", "max_slots", "max-slots")
"""Keys of a hostfile, which cannot be names of hosts."""
THIS_MACHINE = "this machine"
"""The ``source`` of a host that no hostfile or flag names: the machine that runs the command."""

_SHOWN_CHARACTERS = 160
# Names become arguments of ssh and mpirun, so none begins with '-' or has a character that a shell reads.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_NO_NAME = (
    "is not a host name, which has at most 253 letters, digits, '.', '-' and '_', and begins and ends with a "
    "letter or digit"
)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

LOOPBACK = "lo"
"""The interface of a run on one host, unless the user names another; other machines cannot reach it."""

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit")
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_RATE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_LATENCY_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_MIN_BITS_PER_SECOND = 10**5
_MAX_BITS_PER_SECOND = 10**12
_MAX_LATENCY_SECONDS = 10.0


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The rate and the added latency of each host's network, in a rehearsal or for a prediction."""

    bits_per_second: int | None = None
    """Maximum rate in each direction; None for no limit."""
    latency_seconds: float = 0.0
    """Time that is added to each packet from one host to another."""

    def __str__(self) -> str:
        """Return the rate and the latency as people read them: ``1 gbit/s, 2 ms``, or ``no rate limit``."""
        rate = "no rate limit"
        if self.bits_per_second is not None:
            prefix, size = next(
                unit for unit in reversed(_RATE_UNITS.items()) if self.bits_per_second >= unit[1]
            )
            rate = f"{self.bits_per_second / size:g} {prefix}bit/s"
        return f"{rate}, {self.latency_seconds * 1e3:g} ms" if self.latency_seconds else rate


def parse_link(text: str, flag: str = "--link") -> Link:
    """Return the link that a text such as ``1gbit,2ms`` describes.

    The text is RATE or RATE,LATENCY, each with a unit as in the tool ``tc``. Errors name ``flag``.

    Raises:
        UsageError: the text has another form, or a value is out of range.
    """
    rate, comma, latency = text.partition(",")
    try:
        return Link(bits_per_second=read_rate(rate), latency_seconds=read_latency(latency) if comma else 0.0)
    except ValueError as error:
        raise UsageError(
            f"{flag} cannot be {text!r}.",
            found=f"{error}.",
            remedy="Use RATE or RATE,LATENCY: 100mbit, or 1gbit,2ms.",
        ) from None


def read_rate(text: str) -> int:
    """Return the bits per second of a rate such as ``100mbit``; a ``ValueError`` says what is right."""
    match = _RATE.fullmatch(text.strip().lower())
    bits = float(match[1]) * _RATE_UNITS[match[2]] if match else 0.0
    if not _MIN_BITS_PER_SECOND <= bits <= _MAX_BITS_PER_SECOND:
        raise ValueError("It must be a rate from 100kbit to 1tbit, such as 1gbit")
    return round(bits)


def read_latency(text: str) -> float:
    """Return the seconds of a latency such as ``2ms``; a ``ValueError`` says what is right."""
    match = _LATENCY.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _LATENCY_UNITS[match[2]] if match else math.inf
    if seconds > _MAX_LATENCY_SECONDS:
        raise ValueError("It must be a latency of at most 10s, such as 2ms")
    return seconds


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The network over which the ranks of all arms communicate."""

    interface: str = LOOPBACK
    """Name of the network interface, the same on every host."""
    network: str = ""
    """The network that all hosts share on the interface, such as 10.0.0.0/24.

    If the hosts share no network and are only routed to each other, it is the name of the interface. On one
    machine it is empty.
    """
    addresses: tuple[str, ...] = ("127.0.0.1",)
    """The address of every host on this interface, in the order of the hosts.

    The ranks form their group at the first address.
    """
    rehearsed: Link | None = None
    """The limits of the hosts' links in a rehearsal; None for real hosts."""


def rehearsal_headline(network: Network, hosts: Sequence[Host]) -> str:
    """Return a headline that states the hosts and links of a rehearsal; empty for real hosts."""
    if network.rehearsed is None:
        return ""
    return f"REHEARSED: {counted(len(hosts), 'host')} on one machine, {network.rehearsed}"


class HostFaultError(ValueError):
    """An error in the text of a host; its catcher adds where that text was read.

    The message is the faulty text ``found`` in quotes, followed by ``problem``.
    """

    def __init__(self, found: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"'{printable_line(found)}' {problem}")
        self.remedy = remedy


class Host(msgspec.Struct, frozen=True):
    """A machine that runs ranks.

    Args:
        name: its host name, IPv4 address, or IPv6 address without brackets.
        slots: the number of ranks that it can run.
        user: the user to log in as; empty for the default of the program that logs in, such as ssh.
        source: the "file:line" or "flag:number" where the host was read, or ``THIS_MACHINE``; for errors.

    Raises:
        ValueError: no launcher could use the host; ``msgspec.ValidationError`` when decoded from JSON.
    """

    name: str
    slots: int
    user: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse a name, user or number of slots that launchers cannot use."""
        if ":" in self.name:
            # Each address gets one spelling; otherwise ::1 and 0::1 would count as two hosts.
            msgspec.structs.force_setattr(self, "name", _ipv6(self.name))
        else:
            _check_name(self.name)
        if self.user and not _USER.fullmatch(self.user):
            raise HostFaultError(self.user, "is not a user name")
        if not 1 <= self.slots <= MAX_SLOTS:
            raise HostFaultError(f"slots={self.slots}", f"is out of range, which is 1 to {MAX_SLOTS:,}")

    @property
    def key(self) -> str:
        """Return the name in lower case, because host names that differ only in case are equal (RFC 4343)."""
        return self.name.lower()

    @property
    def destination(self) -> str:
        """Return ``user@name``, or the name if there is no user, as ssh and Open MPI expect it."""
        return f"{self.user}@{self.name}" if self.user else self.name


def local_host(slots: int) -> Host:
    """Return this machine as a host named ``localhost`` with so many slots.

    Raises:
        UsageError: ``slots`` is not from 1 to ``MAX_SLOTS``.
    """
    try:
        return Host(name="localhost", slots=slots, source=THIS_MACHINE)
    except HostFaultError as fault:
        remedy = f"Ask for 1 to {MAX_SLOTS:,} ranks on this machine."
        raise UsageError(f"{THIS_MACHINE}: {fault}", remedy=remedy) from None


def is_local(host: Host) -> bool:
    """Return whether a host's name means this machine.

    ``localhost``, this machine's own name and loopback addresses are local. A longer or shorter form of the
    own name is local if it resolves to an address of this machine. So the launcher of an MPIJob recognises
    itself in the hostfile. Any other name is remote, even if it resolves to this machine. A host with a user
    is never local, because ``alice@localhost`` asks for a login as alice.
    """
    if host.user:
        return False
    own_name = socket.gethostname().lower()
    if host.key in ("localhost", own_name):
        return True
    try:
        return ipaddress.ip_address(host.name).is_loopback
    except ValueError:
        same_host_part = host.key.partition(".")[0] == own_name.partition(".")[0]
        return same_host_part and _resolves_to_this_machine(host.name)


def _resolves_to_this_machine(name: str) -> bool:
    """Return whether a name resolves to an address of this machine; False if it cannot be looked up."""
    import psutil  # imported late, because most runs look up no name

    try:
        addresses = _addresses_of(name)
    except (OSError, UnicodeError):
        return False  # the name may be unknown so far: a pod's DNS record appears after its start
    own_addresses = {address.address for each in psutil.net_if_addrs().values() for address in each}
    return any(address in own_addresses or ipaddress.ip_address(address).is_loopback for address in addresses)


@functools.cache
def _addresses_of(name: str) -> frozenset[str]:
    """Return the addresses of a name, which is looked up again only after an error.

    A name server may take longer than a host may be silent.
    """
    return frozenset(str(entry[4][0]) for entry in socket.getaddrinfo(name, None))


def fill_slots(hosts: Sequence[Host], ranks: int | None) -> tuple[Host, ...]:
    """Give the ranks to the hosts, host after host, and return the hosts that got some.

    Each of them is a copy with as many slots as it has ranks. With ``ranks`` None, every slot is filled.

    Raises:
        UsageError: ``ranks`` is larger than the number of slots.
    """
    total = sum(host.slots for host in hosts)
    wanted = total if ranks is None else ranks
    if wanted > total:
        raise UsageError(
            f"{wanted} ranks do not fit: the hosts take {total}",
            found=listed_hosts(hosts),
            remedy=f"Ask for at most {total} (-np {total}), or give the hosts more slots.",
        )
    before = itertools.accumulate((host.slots for host in hosts), initial=0)
    counts = [min(host.slots, max(0, wanted - taken)) for host, taken in zip(hosts, before, strict=False)]
    pairs = zip(hosts, counts, strict=True)
    return tuple(msgspec.structs.replace(host, slots=count) for host, count in pairs if count)


def listed_hosts(hosts: Iterable[Host]) -> str:
    """Return the hosts with their slots in the form that errors show: ``hosts: a:2,me@b:2``."""
    return f"hosts: {printable_line(','.join(map(host_with_slots, hosts))) or 'none'}"


def printable_line(text: str) -> str:
    """Return text as one line, cut after 160 characters, with control and non-ASCII characters escaped."""
    line = text.strip().replace("\t", " ")
    if not (line.isascii() and line.isprintable()):
        line = line.encode("unicode_escape").decode("ascii")
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."


def host_with_slots(host: Host, joint: str = ":") -> str:
    """Return the text of a host with its user and slots, such as ``me@b:2``; ``joint`` precedes the slots."""
    name = f"[{host.name}]" if ":" in host.name else host.name
    return f"{host.user}@{name}{joint}{host.slots}" if host.user else f"{name}{joint}{host.slots}"


def _check_name(name: str) -> None:
    if not name:
        raise HostFaultError(name, "is an empty host name")
    if not NAME.fullmatch(name):
        raise HostFaultError(name, _NO_NAME)
    if name in KEYS:
        raise HostFaultError(name, "is a key, not a host name")
    if name.replace(".", "").isdigit():
        # ssh would take 10.1 for 10.0.0.1, and a lone number for an address as well.
        try:
            ipaddress.IPv4Address(name)
        except ValueError:
            raise HostFaultError(name, "is neither a host name nor an IPv4 address") from None


def _ipv6(name: str) -> str:
    """Return the usual spelling of an IPv6 address; raise a ``HostFaultError`` for any other text."""
    try:
        address = ipaddress.IPv6Address(name)
    except ValueError:
        raise HostFaultError(name, "is neither host:N nor an IPv6 address") from None
    if address.scope_id is not None:
        raise HostFaultError(name, "has a zone, which launchers do not support")
    return str(address)
