"""Hostfiles: which hosts there are, and how many ranks each may take.

A host may be written in every form the field already uses::

    node1 slots=4 max_slots=8   # Open MPI, Horovod, DeepSpeed
    node1:4                     # MPICH, Intel MPI; [::1]:4 for an IPv6 address
    node1 4                     # LSF
    node1                       # PBS: one slot for every line that names the host
    node[1-4] slots=8           # a range, as in Slurm and ClusterShell
    alice@node1 slots=4         # log in as somebody else

Nothing here looks a name up or starts a process, and only ``read_hostfile`` reads a file. Every mistake
in a text is a ``UsageError`` that names file:line, shows the line and gives the right form.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import msgspec

from compare.errors import UsageError, system_reason

# Bounds far above any real cluster: a slip such as node[1-100000000] ends in a message, not in swap.
MAX_HOSTS = 16_384
MAX_SLOTS = 65_536
MAX_FILE_BYTES = 16 * 2**20
_SHOWN_CHARACTERS = 160

_FILE_FORM = "Write one host a line as 'host slots=N', for example 'node1 slots=4'."
_LIST_FORM = "Write the hosts as 'host:N,host:N', for example 'node1:4,node2:4'."
_NAME_FORM = "Name hosts as the hostfile does, for example 'node1' or 'node[1-4]'."
_REPEAT_FORM = "Name a host once with slots=N, or repeat its bare name, one slot a line."

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\v\f"
_GAP = re.compile(r"[ \t\v\f]+")
_KEYS = {"slots": "slots", "max_slots": "max_slots", "max-slots": "max_slots"}

# Names reach ssh and mpirun as arguments: no first '-' (an option), nothing a shell would read.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_COUNT = re.compile(r"[0-9]{1,9}")
_BRACKETED_IPV6 = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](?::(.*))?")
# 18 digits: beyond any host number, and int() stays cheap.
_SPAN = r"[0-9]{1,18}(?:-[0-9]{1,18}(?:/[0-9]{1,18})?)?"
_RANGE = re.compile(rf"\[({_SPAN}(?:,{_SPAN})*)\]")


class _FaultError(ValueError):
    """One thing that is wrong in a text; whoever knows its file and line makes it a ``UsageError``."""

    def __init__(self, found: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"'{_shown(found)}' {problem}")
        self.remedy = remedy


class Host(msgspec.Struct, frozen=True):
    """A machine that takes ranks.

    Args:
        name: host name, IPv4 address or IPv6 address without brackets.
        slots: how many ranks it takes.
        user: whom to log in as; empty for whoever ssh would take.
        max_slots: how many ranks it takes when oversubscribed; None for no limit of its own.
        source: "file:line" it was read from, for errors.

    Raises:
        ValueError: no launcher could use it; ``msgspec.ValidationError`` when decoded from JSON.
    """

    name: str
    slots: int
    user: str = ""
    max_slots: int | None = None
    source: str = ""

    def __post_init__(self) -> None:
        """Hold for every host, wherever it came from, what the launchers rely on."""
        if ":" in self.name:
            # One spelling for one address; otherwise ::1 and 0::1 would pass for two hosts.
            msgspec.structs.force_setattr(self, "name", _ipv6(self.name))
        else:
            _check_name(self.name)
        if self.user and not _USER.fullmatch(self.user):
            raise _FaultError(self.user, "is not a user name")
        _check_slots("slots", self.slots)
        if self.max_slots is not None:
            _check_slots("max_slots", self.max_slots)
            if self.max_slots < self.slots:
                raise _FaultError(f"max_slots={self.max_slots}", f"is less than slots={self.slots}")

    @property
    def destination(self) -> str:
        """``[user@]name``, as ssh and Open MPI take it."""
        return f"{self.user}@{self.name}" if self.user else self.name


def read_hostfile(path: str | PathLike[str]) -> tuple[Host, ...]:
    """Read the hosts of a file, in its order.

    Raises:
        UsageError: the file is missing, unreadable, not text or names no host (never a local run
            instead), or a line is wrong.
    """
    remedy = "Give --hostfile a text file with one 'host slots=N' a line."
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            found = f"more than {MAX_FILE_BYTES:,} bytes"
            raise UsageError(f"{path}: this is not a hostfile", found=found, remedy=remedy)
        text = content.decode("utf-8-sig")
    except OSError as error:
        found = system_reason(error)
        raise UsageError(f"{path}: the hostfile cannot be read", found=found, remedy=remedy) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: this is not UTF-8 text", found=str(error), remedy=remedy) from None
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """Parse the text of a hostfile; ``source`` is its name in errors.

    Hosts come in the order in which they are first named, those of a range in the order written.

    Raises:
        UsageError: a line is wrong, a host is named twice, or there is no host at all.
    """
    rows = [row.partition("#")[0].strip(_BLANKS) for row in _LINE_END.split(text.removeprefix("\ufeff"))]
    hosts = _collect(_Line(source, number, row) for number, row in enumerate(rows, 1) if row)
    if not hosts:
        found = "only comments and blank lines" if text.strip() else "an empty text"
        raise UsageError(f"{source}:1: no host is named", found=found, remedy=_FILE_FORM)
    return hosts


def parse_hosts(spec: str, source: str = "-H") -> tuple[Host, ...]:
    """Parse hosts from the command line, such as ``node1:4,node2:4`` or ``node[1-2,5]:4``.

    Errors number the hosts as a hostfile's lines: ``-H:2`` is the second of the list.

    Raises:
        UsageError: as ``parse_hostfile``.
    """
    items = _split_list(spec)
    return _collect(_Line(source, number, item, _LIST_FORM) for number, item in enumerate(items, 1))


def select(
    hosts: Sequence[Host], include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> tuple[Host, ...]:
    """Keep the hosts of ``include`` (all, when empty) that ``exclude`` does not name, in their order.

    Both take names, ranges, and comma-separated lists of them.

    Raises:
        UsageError: a name is none of the hosts', or no host is left.
    """
    known = {_key(host.name) for host in hosts}
    wanted = _named(include, "--include", hosts) or known
    unwanted = _named(exclude, "--exclude", hosts)
    kept = tuple(host for host in hosts if _key(host.name) in wanted - unwanted)
    if not kept:
        remedy = "Include at least one host that is not excluded."
        raise UsageError("--exclude: no host is left", found=_listed(hosts), remedy=remedy)
    return kept


NOBODY_NAMED = "this machine"
"""The source of a host that stands in no file."""


def local_host(slots: int) -> Host:
    """Return this machine as a host.

    Raises:
        UsageError: ``slots`` is not positive, or absurd.
    """
    try:
        return Host(name="localhost", slots=slots, source=NOBODY_NAMED)
    except _FaultError as fault:
        remedy = "Ask for at least one rank on this machine."
        raise UsageError(f"this machine: {fault}", remedy=remedy) from None


def is_local(host: Host) -> bool:
    """Whether a host surely is this machine, judged by its name alone: no look-up, no DNS.

    False may still be this machine under another name; ssh will find it. A host with a user is never
    local: whoever wrote ``alice@localhost`` wants a login as alice.
    """
    if host.user:
        return False
    if _key(host.name) in ("localhost", _key(socket.gethostname())):
        return True
    try:
        return ipaddress.ip_address(host.name).is_loopback
    except ValueError:
        return False


def normalise(hosts: Iterable[Host]) -> str:
    """Write hosts as a hostfile in Open MPI's form; parsing it gives the same hosts again.

    Neither comments nor blank lines: Horovod's own parser fails on both.
    """
    return "".join(f"{host.destination} slots={host.slots}{_max_slots_suffix(host)}\n" for host in hosts)


def hosts_argument(hosts: Iterable[Host]) -> str:
    """Return the value of our ``-H``: ``a:2,me@b:2``. ``max_slots`` has no place in it."""
    return ",".join(map(_counted, hosts))


def place(hosts: Sequence[Host], ranks: int | None, *, oversubscribe: bool = False) -> tuple[Host, ...]:
    """Fill hosts with ranks in order; None fills every slot.

    With ``oversubscribe``, ranks beyond the slots are spread evenly, up to each host's ``max_slots``.

    Returns:
        the hosts that got a rank, each with as many slots as it has ranks.

    Raises:
        UsageError: fewer than one rank, or more ranks than the hosts take.
    """
    slots = [host.slots for host in hosts]
    wanted = sum(slots) if ranks is None else ranks
    limits = [host.max_slots or MAX_SLOTS for host in hosts] if oversubscribe else slots
    if not 1 <= wanted <= sum(limits):
        raise _misplaced(hosts, wanted, sum(limits))
    counts = _fill(slots, min(wanted, sum(slots)))
    counts = _spread(counts, limits, wanted - sum(counts))
    placed = zip(hosts, counts, strict=True)
    return tuple(msgspec.structs.replace(host, slots=count) for host, count in placed if count)


class _Line(msgspec.Struct, frozen=True):
    """A line of a hostfile, or a host of a list: what an error about it needs."""

    source: str
    number: int
    text: str
    form: str = _FILE_FORM

    @property
    def where(self) -> str:
        return f"{self.source}:{self.number}"

    def error(self, fault: _FaultError) -> UsageError:
        return UsageError(f"{self.where}: {fault}", found=_shown(self.text), remedy=fault.remedy or self.form)


class _Entry(msgspec.Struct, frozen=True):
    """What a line says; ``slots`` is None where it says nothing about them."""

    pattern: str
    user: str
    slots: int | None
    max_slots: int | None


def _collect(lines: Iterable[_Line]) -> tuple[Host, ...]:
    hosts: dict[str, Host] = {}
    counted: set[str] = set()  # hosts whose slots are written out, and must not be repeated
    for line in lines:
        try:
            _enter(hosts, counted, line)
        except _FaultError as fault:
            raise line.error(fault) from None
    return tuple(hosts.values())


def _enter(hosts: dict[str, Host], counted: set[str], line: _Line) -> None:
    entry = _parse_entry(line.text)
    for name in _expand(entry.pattern):
        slots = 1 if entry.slots is None else entry.slots
        host = Host(name, slots, entry.user, entry.max_slots, line.where)
        key = _key(host.name)
        bare = entry.slots is None and key not in counted
        hosts[key] = _repeated(hosts[key], host, bare=bare) if key in hosts else host
        if entry.slots is not None:
            counted.add(key)
    if len(hosts) > MAX_HOSTS:
        raise _FaultError(line.text, f"is one host too many: the limit is {MAX_HOSTS:,}")


def _repeated(first: Host, again: Host, *, bare: bool) -> Host:
    if not bare:
        problem = f"was named before, at {first.source}, and only a bare name may be repeated"
        raise _FaultError(again.name, problem, _REPEAT_FORM)
    if first.user != again.user:
        problem = f"was {first.destination} before, at {first.source}"
        raise _FaultError(again.destination, problem, _REPEAT_FORM)
    return msgspec.structs.replace(first, slots=first.slots + 1)


def _parse_entry(text: str) -> _Entry:
    # Open MPI reads '=' as a word of its own, so 'slots = 4' is as good as 'slots=4'.
    head, *words = _GAP.sub(" ", text).replace(" =", "=").replace("= ", "=").split(" ")
    user, at, address = head.rpartition("@")
    if at and not user:
        raise _FaultError(head, "has no user before the '@'")
    pattern, count = _split_count(address)
    numbers: dict[str, int] = {} if count is None else {"slots": _number("slots", count)}
    for word in words:
        key, value = _split_word(word)
        if key in numbers:
            raise _FaultError(word, f"gives {key} a second time")
        numbers[key] = _number(key, value)
    most = numbers.get("max_slots")
    # max_slots alone gives the slots too, as in Open MPI (hostfile.c, seen with mpirun 4.1.8).
    return _Entry(pattern, user, numbers.get("slots", most), most)


def _split_count(address: str) -> tuple[str, str | None]:
    """Split ``host:N``; two colons or more without brackets can only be an IPv6 address."""
    if ipv6 := _BRACKETED_IPV6.fullmatch(address):
        return ipv6[1], ipv6[2]
    if address.count(":") > 1:
        return address, None
    name, colon, count = address.partition(":")
    return name, count if colon else None


def _split_word(word: str) -> tuple[str, str]:
    """Split ``key=N``; a word without '=' is LSF's bare number of slots."""
    key, equals, value = word.rpartition("=")
    if not equals:
        return "slots", word
    if key not in _KEYS:
        raise _FaultError(key, "is not a key: hosts have slots and max_slots")
    return _KEYS[key], value


def _number(key: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise _FaultError(text, f"is not a number of {key}: it must be whole, from 1 to {MAX_SLOTS:,}")
    return int(text)


def _check_slots(key: str, value: int) -> None:
    if not 1 <= value <= MAX_SLOTS:
        raise _FaultError(f"{key}={value}", f"is out of range: from 1 to {MAX_SLOTS:,}")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise _FaultError(name, "is not a host name: letters, digits, '.', '-' and '_'")
    if name in _KEYS:
        raise _FaultError(name, "is a key, not a host name")
    if name.replace(".", "").isdigit():
        # ssh would take 10.1 for 10.0.0.1, and a lone number for an address as well.
        try:
            ipaddress.IPv4Address(name)
        except ValueError:
            raise _FaultError(name, "is neither a host name nor an IPv4 address") from None


def _ipv6(name: str) -> str:
    try:
        if "%" not in name:  # a zone, which neither launchers nor hostfiles know
            return str(ipaddress.IPv6Address(name))
    except ValueError:
        pass
    raise _FaultError(name, "is neither host:N nor an IPv6 address")


def _expand(pattern: str) -> Sequence[str]:
    """Names of a range, in the order written; a name without brackets is itself."""
    if "[" not in pattern and "]" not in pattern:
        return (pattern,)
    # What is left around the brackets must be a name, or they would be ClusterShell's set operators.
    if not _NAME.fullmatch(_RANGE.sub("0", pattern)):
        raise _FaultError(pattern, "is not a range of host names such as node[1-4] or node[01-08,12]")
    parts = _RANGE.split(pattern)  # fixed, range, fixed, range, …, fixed
    size = math.prod(_size(part) for part in parts[1::2])
    if size > MAX_HOSTS:
        raise _FaultError(pattern, f"names {size:,} hosts: the limit is {MAX_HOSTS:,}")
    choices = [_numbers(part) if index % 2 else [part] for index, part in enumerate(parts)]
    names = ["".join(choice) for choice in itertools.product(*choices)]
    if len(set(names)) < len(names):
        raise _FaultError(pattern, "names a host twice")
    return names


def _size(spans: str) -> int:
    """Count what a range would expand to, without expanding it."""
    total = 0
    for span in spans.split(","):
        first, _, rest = span.partition("-")
        last, _, step = rest.partition("/")
        # Backward spans and a step of nought are for ClusterShell to refuse: one host will do here.
        total += max(0, int(last or first) - int(first)) // max(1, int(step or 1)) + 1
    return total


def _numbers(spans: str) -> list[str]:
    # Most hostfiles have no range, and the command line starts faster without ClusterShell.
    from ClusterShell.RangeSet import RangeSet, RangeSetException

    try:
        # Span by span: a RangeSet sorts, and the order of hosts is the order of ranks.
        return [number for span in spans.split(",") for number in RangeSet(span).striter()]
    except RangeSetException as error:
        raise _FaultError(f"[{spans}]", f"is not a range: {error}") from None


def _split_list(spec: str) -> Iterator[str]:
    """Split at commas, except those inside brackets, which belong to a range."""
    depth = start = 0
    for index, character in enumerate(spec):
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            yield spec[start:index].strip(_BLANKS)
            start = index + 1
    yield spec[start:].strip(_BLANKS)


def _named(patterns: Iterable[str], option: str, hosts: Sequence[Host]) -> set[str]:
    """Keys of the hosts that patterns name; each must be one of ``hosts``."""
    known = {_key(host.name) for host in hosts}
    named: set[str] = set()
    for number, pattern in enumerate((item for text in patterns for item in _split_list(text)), 1):
        line = _Line(option, number, pattern, _NAME_FORM)
        try:
            keys = [_key(Host(name, 1).name) for name in _expand(_uncounted(pattern))]
        except _FaultError as fault:
            raise line.error(fault) from None
        if unknown := [key for key in keys if key not in known]:
            what = f"{line.where}: no such host: {_shown(', '.join(unknown))}"
            raise UsageError(what, found=_listed(hosts), remedy=_NAME_FORM)
        named.update(keys)
    return named


def _uncounted(pattern: str) -> str:
    name, count = _split_count(pattern)
    if count is not None:
        raise _FaultError(pattern, "selects hosts, not slots")
    return name


def _fill(slots: list[int], ranks: int) -> list[int]:
    before = itertools.accumulate(slots, initial=0)
    return [min(room, max(0, ranks - taken)) for room, taken in zip(slots, before, strict=False)]


def _spread(counts: list[int], limits: list[int], extra: int) -> list[int]:
    """Share out ``extra`` ranks evenly, earlier hosts first, where there is room."""
    counts = counts.copy()
    while extra:
        open_hosts = [index for index, count in enumerate(counts) if count < limits[index]]
        share, rest = divmod(extra, len(open_hosts))
        for turn, index in enumerate(open_hosts):
            given = min(limits[index] - counts[index], share + (turn < rest))
            counts[index] += given
            extra -= given
    return counts


def _misplaced(hosts: Sequence[Host], ranks: int, room: int) -> UsageError:
    if ranks < 1:
        what, remedy = f"{ranks} ranks cannot be placed", "Ask for one rank or more."
    else:
        what = f"{ranks} ranks do not fit: the hosts take {room}"
        remedy = f"Ask for {room} ranks at most (-np {room}), or give the hosts more slots."
    return UsageError(what, found=_listed(hosts), remedy=remedy)


def _key(name: str) -> str:
    """Host names differ in more than case (RFC 4343)."""
    return name.lower()


def _counted(host: Host) -> str:
    """``[user@]host:N``."""
    login = f"{host.user}@" if host.user else ""
    name = f"[{host.name}]" if ":" in host.name else host.name
    return f"{login}{name}:{host.slots}"


def _max_slots_suffix(host: Host) -> str:
    return "" if host.max_slots is None else f" max_slots={host.max_slots}"


def _listed(hosts: Iterable[Host]) -> str:
    return f"hosts: {_shown(hosts_argument(hosts)) or 'none'}"


def _shown(text: str) -> str:
    """Text fit for a terminal: one short line, with every character that may deceive the eye escaped."""
    line = text.strip().replace("\t", " ")
    if not (line.isascii() and line.isprintable()):
        line = line.encode("unicode_escape").decode("ascii")
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."


LOOPBACK = "lo"
"""The interface of every arm on one machine: no port is open to anybody else."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of all arms reach each other."""

    interface: str = LOOPBACK
    network: str = ""
    """That all hosts share on the interface, as 10.0.0.0/24; the interface's name where hosts have no
    network in common but are routed to each other; empty on one machine."""
    addresses: tuple[str, ...] = ("127.0.0.1",)
    """Of every host on it, in their order; at the first the ranks meet."""
