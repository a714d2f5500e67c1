"""Read hostfiles and lists of hosts.

A host is written in any form that the field uses::

    node1 slots=4 max_slots=8   # Open MPI, Horovod, DeepSpeed
    node1:4                     # MPICH, Intel MPI; [::1]:4 for an IPv6 address
    node1 4                     # LSF
    node1                       # PBS: one slot for each line that names the host
    node[1-4] slots=8           # a range, as in Slurm and ClusterShell
    alice@node1 slots=4         # log in as another user
    node1,node[3-4]             # several, with commas, all in the same form
    node1 4 all.q@node1 <NULL>  # Grid Engine's $PE_HOSTFILE

Other known forms are refused by errors that name them: see ``hostfile_forms``. Nothing here looks a name up
or starts a process, and only ``read_hostfile`` reads a file. Every mistake in a text is a ``UsageError``,
which names file:line, shows the line and gives the right form.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path

import msgspec

from compare.errors import UsageError, system_reason
from compare.schema.hostfile_forms import (
    as_hostfile_line,
    may_be_a_port,
    recognise_form,
    slots_or_port_remedy,
)
from compare.schema.hosts import (
    KEYS,
    MAX_SLOTS,
    NAME,
    Host,
    HostFaultError,
    host_with_slots,
    listed_hosts,
    printable_line,
)
from compare.system.files import read_bytes

MAX_HOSTS = 16_384
"""Maximum number of hosts.

It is far above any real cluster, but a typing error such as node[1-100000000] cannot fill the memory.
"""
MAX_FILE_BYTES = 16 * 2**20

_FILE_FORM = "Write one host a line as 'host slots=N', for example 'node1 slots=4'."
_LIST_FORM = "Write the hosts as 'host:N,host:N', for example 'node1:4,node2:4'."
_NAME_FORM = "Name hosts as the hostfile or the job does, such as 'node1,node[3-4]', or leave out '^node2'."
_REPEAT_FORM = "Name a host once with slots=N, or repeat its bare name, one slot a line."
_RANGE_FORM = "is not a range of host names such as node[1-4] or node[01-08,12]"

LEFT_OUT = "^"
"""The mark before a host that ``-H`` leaves out."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""The first bytes of a text in UTF-16, as Windows writes it."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\v\f"
_GAP = re.compile(r"[ \t\v\f]+")
_COUNT = re.compile(r"[0-9]{1,9}")
_BRACKETED_IPV6 = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](?::(.*))?")
# 18 digits: beyond any host number, and int() stays cheap.
_SPAN = r"[0-9]{1,18}(?:-[0-9]{1,18}(?:/[0-9]{1,18})?)?"
_RANGE = re.compile(rf"\[({_SPAN}(?:,{_SPAN})*)\]")


def read_hostfile(path: str | PathLike[str]) -> tuple[Host, ...]:
    """Read a hostfile, and return its hosts in the order in which they are first named.

    Raises:
        UsageError: the file is missing, unreadable, too large, not text or names no host, or a line is wrong.
    """
    remedy = "Give --hostfile a text file with one host a line, such as 'node1 slots=4'."
    try:
        content = read_bytes(Path(path), MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            found = f"more than {MAX_FILE_BYTES:,} bytes"
            raise UsageError(f"{path}: this is not a hostfile", found=found, remedy=remedy)
        text = content.decode("utf-16" if content.startswith(_UTF_16) else "utf-8-sig")
    except OSError as error:
        found = system_reason(error)
        raise UsageError(f"{path}: the hostfile cannot be read", found=found, remedy=remedy) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: this is not UTF-8 text", found=str(error), remedy=remedy) from None
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """Return the hosts of a hostfile's text; ``source`` is the file's name in errors.

    Hosts are in the order in which they are first named, and those of a range in the order written.

    Raises:
        UsageError: a line is wrong, a host with slots is named again, or there is no host at all.
    """
    rows = [row.partition("#")[0].strip(_BLANKS) for row in _LINE_END.split(text.removeprefix("\ufeff"))]
    hosts = _collect(_Line(source, number, row) for number, row in enumerate(rows, 1) if row)
    if not hosts:
        found = "only comments and blank lines" if text.strip() else "an empty text"
        raise UsageError(f"{source}:1: no host is named", found=found, remedy=_FILE_FORM)
    return hosts


def parse_hosts(spec: str) -> tuple[Host, ...]:
    """Return the hosts of a list from the command line: ``node1:4,node2:4`` or ``node[1-2,5]:4``.

    Errors number the hosts like the lines of a hostfile, so ``-H:2`` is the second host of the list.

    Raises:
        UsageError: a host is wrong, or one with slots is named again.
    """
    items = list(_split_list(spec))
    try:
        _refuse_unclear_slots(items, spec)
    except HostFaultError as fault:
        raise _Line("-H", 1, spec, _LIST_FORM).error(fault) from None
    return _collect(_Line("-H", number, item, _LIST_FORM) for number, item in enumerate(items, 1))


def select(hosts: Sequence[Host], spec: str) -> tuple[Host, ...]:
    """Return those hosts that a text of ``-H`` names, or else all, without those that it leaves out.

    They are in the order of ``hosts``. Each host to leave out has a ``^`` before its name, and these come
    last, because ``^a,b`` could mean either. A host that is named with slots gets these.

    Raises:
        UsageError: the text is wrong or names a host that is not in ``hosts``, or no host is left.
    """
    known = {host.key: host for host in hosts}
    used, left_out = dict[str, Host](), dict[str, Host]()
    items = list(_split_list(spec))
    marks = [item.startswith(LEFT_OUT) for item in items]
    if marks != sorted(marks):
        raise UsageError(
            f"-H: a host follows one with '{LEFT_OUT}'",
            found=printable_line(spec),
            remedy=f"Put '{LEFT_OUT}' before every host that is left out, and these hosts last.",
        )
    for number, (item, is_left_out) in enumerate(zip(items, marks, strict=True), 1):
        try:
            named = {host.key: host for host in _named_hosts(item.removeprefix(LEFT_OUT), known)}
        except HostFaultError as fault:
            raise _Line("-H", number, spec, _NAME_FORM).error(fault) from None
        (left_out if is_left_out else used).update(named)
    kept = {key: host for key, host in (used or known).items() if key not in left_out}
    if not kept:
        raise UsageError("-H: no host is left", found=listed_hosts(hosts), remedy="Leave fewer hosts out.")
    return tuple(kept[key] for key in known if key in kept)


def names_any(hosts: Sequence[Host], spec: str) -> bool:
    """Return whether a text of ``-H`` chooses among ``hosts``: it names one of them, or leaves some out."""
    return LEFT_OUT in spec or bool({host.key for host in hosts} & {host.key for host in parse_hosts(spec)})


def format_hostfile(hosts: Sequence[Host]) -> str:
    """Return the text of a hostfile in Open MPI's form, which ``parse_hostfile`` reads as the same hosts.

    It has no comments and no blank lines, because Horovod's own parser fails on both.
    """
    return "".join(f"{host.destination} slots={host.slots}\n" for host in hosts)


def format_hosts(hosts: Sequence[Host]) -> str:
    """Return hosts as the value of the flag ``-H``, quoted for a shell."""
    joints = (" slots=" if may_be_a_port(str(host.slots)) else ":" for host in hosts)
    return shlex.quote(",".join(map(host_with_slots, hosts, joints)))


class _Line(msgspec.Struct, frozen=True):
    """A line of a hostfile, or a host of a list, with what errors state about it."""

    source: str
    """Name of the file or flag."""
    number: int
    """Number of the line, or of the host in the list, from 1."""
    text: str
    form: str = _FILE_FORM
    """The sentence that tells a user the right form."""

    @property
    def where(self) -> str:
        return f"{self.source}:{self.number}"

    def error(self, fault: HostFaultError) -> UsageError:
        """Return the error that tells a user of a fault in this line.

        If the line has the form of another program, the error names that form instead of the fault.
        """
        problem, remedy = str(fault), fault.remedy or self.form
        if not fault.remedy and (form := recognise_form(self.text)):
            problem, remedy = form[0], f"{form[1]} {self.form}".strip()
        return UsageError(f"{self.where}: {problem}", found=printable_line(self.text), remedy=remedy)


def _collect(lines: Iterable[_Line]) -> tuple[Host, ...]:
    """Return the hosts of all lines, each once; raise a ``UsageError`` for a wrong line."""
    hosts: dict[str, Host] = {}
    counted: set[str] = set()  # hosts whose slots are written out, and must not be repeated
    for line in lines:
        try:
            text, adds = as_hostfile_line(line.text)
            entries = list(_split_list(text))
            _refuse_unclear_slots(entries, text)
            for entry in entries:
                _add_entry(hosts, counted, line, entry, adds=adds)
        except HostFaultError as fault:
            raise line.error(fault) from None
    return tuple(hosts.values())


def _refuse_unclear_slots(entries: Sequence[str], text: str) -> None:
    """Refuse ``slots=`` in a list in which another host has no number.

    In ``a,b slots=4`` it is not clear whether the slots are those of both hosts, but ``a,b:4`` is clear.
    """
    with_words = [len(_GAP.split(entry)) > 1 for entry in entries]
    bare = [not words and ":" not in entry for words, entry in zip(with_words, entries, strict=True)]
    if any(with_words) and any(bare):
        raise HostFaultError(text, "does not say whether the slots are those of each host or of the last")


def _add_entry(hosts: dict[str, Host], counted: set[str], line: _Line, entry: str, *, adds: bool) -> None:
    """Add the hosts of an entry to ``hosts``; with ``adds``, slots add to earlier ones of the same host."""
    pattern, user, slots = _parse_entry(entry)
    for name in _expand(pattern):
        host = Host(name, 1 if slots is None else slots, user, line.where)
        key = host.key
        may_repeat = (slots is None or adds) and key not in counted
        hosts[key] = _add_slots(hosts[key], host, allowed=may_repeat) if key in hosts else host
        if slots is not None and not adds:
            counted.add(key)
    if len(hosts) > MAX_HOSTS:
        raise HostFaultError(line.text, f"is one host too many: the limit is {MAX_HOSTS:,}")


def _add_slots(first: Host, again: Host, *, allowed: bool) -> Host:
    """Return the host with the slots of both lines that name it, unless it must not be repeated."""
    if not allowed:
        problem = f"was named before, at {first.source}, and only a bare name may be repeated"
        raise HostFaultError(again.name, problem, _REPEAT_FORM)
    if first.user != again.user:
        problem = f"names another user than {first.source}, which has {first.destination!r}"
        raise HostFaultError(again.destination, problem, _REPEAT_FORM)
    return msgspec.structs.replace(first, slots=first.slots + again.slots)


def _parse_entry(text: str) -> tuple[str, str, int | None]:
    """Return the name or range, the user and the slots of an entry; the slots are None if not given."""
    # Open MPI reads '=' as a word of its own, so 'slots = 4' is as good as 'slots=4'.
    head, *words = _GAP.sub(" ", text).replace(" =", "=").replace("= ", "=").split(" ")
    user, at, address = head.rpartition("@")
    if at and not user:
        raise HostFaultError(head, "has no user before the '@'")
    pattern, count = _split_count(address)
    if count is not None and may_be_a_port(count):
        remedy = slots_or_port_remedy(printable_line(f"{user}{at}{pattern}"), count)
        raise HostFaultError(head, f"may mean {count} slots or a port", remedy)
    numbers: dict[str, int] = {} if count is None else {"slots": _number("slots", count)}
    for word in words:
        name, equals, value = word.rpartition("=")
        if equals and name not in KEYS:
            raise HostFaultError(name, "is not a key: hosts have slots and max_slots")
        key = name.replace("-", "_") if equals else "slots"  # LSF writes a bare number of slots
        if key in numbers:
            raise HostFaultError(word, f"gives {key} a second time")
        numbers[key] = _number(key, value)
    # max_slots alone gives the slots, as in Open MPI (hostfile.c, seen with mpirun 4.1.8).
    return pattern, user, numbers.get("slots", numbers.get("max_slots"))


def _split_count(address: str) -> tuple[str, str | None]:
    """Split ``host:N`` into the host and the number, which is None if there is none.

    A text with two colons or more and without brackets can only be an IPv6 address.
    """
    if ipv6 := _BRACKETED_IPV6.fullmatch(address):
        return ipv6[1], ipv6[2]
    if address.count(":") > 1:
        return address, None
    name, colon, count = address.partition(":")
    return name, count if colon else None


def _number(key: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise HostFaultError(text, f"is not a number of {key}: write a whole number from 1 to {MAX_SLOTS:,}")
    return int(text)


def _expand(pattern: str) -> Sequence[str]:
    """Return the names of a range in the order written; a text without brackets is the only name."""
    if "[" not in pattern and "]" not in pattern:
        return (pattern,)
    if not NAME.fullmatch(_RANGE.sub("0", pattern)):
        raise HostFaultError(pattern, _RANGE_FORM)
    parts = _RANGE.split(pattern)  # fixed, range, fixed, range, …, fixed
    ranges = [[_span(span) for span in part.split(",")] for part in parts[1::2]]
    size = math.prod(sum(len(numbers) for numbers, _ in spans) for spans in ranges)
    if size > MAX_HOSTS:
        raise HostFaultError(pattern, f"names {size:,} hosts: the limit is {MAX_HOSTS:,}")
    choices = [[part] for part in parts]
    choices[1::2] = [
        [f"{number:0{width}d}" for numbers, width in spans for number in numbers] for spans in ranges
    ]
    names = ["".join(choice) for choice in itertools.product(*choices)]
    if len(set(names)) < len(names):
        raise HostFaultError(pattern, "names a host twice")
    return names


def _span(text: str) -> tuple[range, int]:
    """Return the numbers of ``4``, ``1-4``, ``01-10`` or ``0-8/2``, and their width.

    The width is 0 for numbers that are not padded with zeros.
    """
    first, _, rest = text.partition("-")
    last, _, step_text = rest.partition("/")
    ends, step = (first, last or first), int(step_text or 1)
    padded = any(len(end) > 1 and end.startswith("0") for end in ends)
    numbers = range(int(ends[0]), int(ends[1]) + 1, step) if step else range(0)
    if not numbers or (padded and len(ends[0]) != len(ends[1])):
        raise HostFaultError(f"[{text}]", "is not a range: write [1-4], [01-10] or [0-8/2]")
    return numbers, len(first) if padded else 0


def _split_list(spec: str) -> Iterator[str]:
    """Yield the parts of a list between its commas; commas inside brackets belong to a range."""
    depth = start = 0
    for index, character in enumerate(spec):
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            yield spec[start:index].strip(_BLANKS)
            start = index + 1
    yield spec[start:].strip(_BLANKS)


def _named_hosts(item: str, known: Mapping[str, Host]) -> Iterator[Host]:
    """Yield the hosts of ``known`` that a name or range means, each with the slots that are given with it."""
    pattern, user, slots = _parse_entry(as_hostfile_line(item)[0])
    for name in _expand(pattern):
        named = Host(name, 1 if slots is None else slots, user)
        host = known.get(named.key)
        if not host or user not in {"", host.user}:
            raise HostFaultError(named.destination, f"is none of the {listed_hosts(known.values())}")
        yield host if slots is None else msgspec.structs.replace(host, slots=slots)
