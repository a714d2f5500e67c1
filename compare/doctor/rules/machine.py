"""Judge machines: slots, clocks, disks, limits, and hosts of different speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from compare.doctor.facts import ExaminedHost, Facts, Finding, Level, differing_hosts, hosts_with_facts
from compare.text import binary_size, counted

CLOCK_SECONDS = 1.0
"""Maximum difference between clocks; a larger one would put failures in the wrong order."""

_MIB = 1 << 20
# Less than the first is a problem, less than the second a warning.
_DISK_BYTES = (16 * _MIB, 1024 * _MIB)
# A container gets 64 MiB by default; NCCL and Open MPI exchange data through shared memory.
_SHARED_MEMORY_BYTES = (8 * _MIB, 128 * _MIB)
_OPEN_FILES = 1024
_LOCKED_BYTES = 64 * _MIB
_BUSY = 0.5


def slots(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts with more slots than cores or GPUs, with GPUs that torch cannot use, or with a high load."""
    for each, facts in hosts_with_facts(hosts):
        wanted, cores, gpus = each.host.slots, usable_cores(facts), len(facts.gpus)
        if wanted > cores:
            limit = f" (its control group allows no more of {facts.cores})" if cores < facts.cores else ""
            found = f"It has {counted(wanted, 'slot')}, but only {counted(cores, 'core')}{limit}."
            fewer = counted(max(1, int(cores)), "slot")
            fix = f"Give the host {fewer}, because ranks that share a core wait for each other."
            yield each.warning("slots", "The host has more slots than cores.", found, fix)
        if gpus and wanted > gpus:
            found = f"It has {wanted} slots, but only {counted(gpus, 'GPU')}."
            fix = f"Give the host {counted(gpus, 'slot')}, or use --device cpu."
            yield each.warning("slots", "The host has more slots than GPUs.", found, fix)
        torch = facts.library("torch")
        if gpus and torch.get("gpus") == 0:
            found = f"nvidia-smi lists {counted(gpus, 'GPU')}, and torch is {torch.get('version')}."
            fix = "Install a CUDA build of torch, and a driver that is new enough for it."
            yield each.warning("torch", "torch finds no GPU.", found, fix)
        if facts.load > _BUSY * facts.cores:
            found = f"It has a load of {facts.load:.1f} on {counted(facts.cores, 'core')}."
            fix = "Wait until other programs end, because they would distort the measurement."
            yield each.finding("note", "load", "The host is busy.", found, fix)


def usable_cores(facts: Facts) -> float:
    """Return how many cores the ranks of a host can use; with a CPU quota, this may be a fraction.

    A container may see more cores than the quota of its control group allows.
    """
    return facts.cores if facts.core_quota is None else min(facts.cores, facts.core_quota)


def clock(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts whose clock differs from this machine's by more than ``CLOCK_SECONDS`` for certain."""
    for each, _ in hosts_with_facts(hosts):
        ahead, uncertain = each.clock_ahead_seconds, each.clock_uncertain_seconds
        if abs(ahead) - uncertain > CLOCK_SECONDS:
            side = "ahead of" if ahead > 0 else "behind"
            found = f"It is {abs(ahead):.1f} s {side} the clock of this machine, ± {uncertain:.1f} s."
            fix = "Synchronise all clocks by NTP: `timedatectl set-ntp true`, or chrony."
            what = "The clocks differ, so failures would be reported in the wrong order."
            yield each.warning("clock", what, found, fix)


def disk(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find folders that launches write to, and that are missing, read-only, full or nearly full."""
    for each, facts in hosts_with_facts(hosts):
        for folder in facts.disks:
            shared = folder.path == "/dev/shm"  # noqa: S108 -- a name; nothing is written
            least, wanted = _SHARED_MEMORY_BYTES if shared else _DISK_BYTES
            found = f"{folder.path}: {binary_size(folder.free_bytes or 0)} free."
            fix = (
                "Give its container more (--shm-size=1g), or remove files there."
                if shared
                else "Free some space, or set TMPDIR to another folder."
            )
            if folder.free_bytes is None or not folder.writable:
                found = f"{folder.path} is read-only."
                if folder.free_bytes is None:
                    found = f"{folder.path} does not exist, or cannot be reached."
                fix = f"Make sure that {folder.path} exists there and is writable, because launches need it."
                yield each.problem("disk", "A folder cannot be written.", found, fix)
            elif folder.free_bytes < least:
                what = "Shared memory is full." if shared else "A disk is full."
                yield each.problem("disk", what, found, fix)
            elif folder.free_bytes < wanted:
                what = "Shared memory is small." if shared else "A disk is nearly full."
                yield each.warning("disk", what, found, fix)


def limits(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find low limits on open files, and on locked memory if the host has InfiniBand."""
    for each, facts in hosts_with_facts(hosts):
        if facts.open_files is not None and facts.open_files < _OPEN_FILES:
            found = f"It is {facts.open_files}, and every rank connects to every other."
            fix = f"Raise it there: `ulimit -n {_OPEN_FILES}`, or nofile in /etc/security/limits.conf."
            yield each.warning("limits", "The limit on open files is low.", found, fix)
        locked = facts.locked_memory_bytes
        if facts.infiniband and locked is not None and locked < _LOCKED_BYTES:
            # The card cannot register memory, and libraries fall back to TCP without a message.
            fix = "Raise it there: memlock unlimited in /etc/security/limits.conf, and for sshd."
            what = "The limit on locked memory is low."
            found = f"It is {binary_size(locked)}, and InfiniBand needs more."
            yield each.warning("limits", what, found, fix)


def memory(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts where ranks may not read each other's memory, which slows MPI down or makes it fail."""
    for each, facts in hosts_with_facts(hosts):
        if reason := facts.memory_reads_refused:
            # Open MPI reads Yama's setting, and then copies messages twice. It foresees no other refusal.
            level: Level = "note" if "yama" in reason else "warning"
            what = "Ranks may not read each other's memory, which MPI does for large messages."
            fix = "Allow it by --cap-add=SYS_PTRACE for a container, kernel.yama.ptrace_scope=0 for a host. "
            fix += "Or ask for copies: OMPI_MCA_btl_vader_single_copy_mechanism=none, and for MPICH, which "
            fix += "fails there, MPIR_CVAR_CH4_CMA_ENABLE=0."
            yield each.finding(level, "memory", what, f"process_vm_readv: {reason}.", fix)


def alike(hosts: Sequence[ExaminedHost]) -> Iterator[Finding]:
    """Find hosts whose processor, number of cores or GPUs differ from those of most hosts."""
    questions: tuple[tuple[Level, str, Callable[[Facts], str]], ...] = (
        ("warning", "processor", lambda facts: facts.machine),
        ("note", "number of cores", lambda facts: f"{usable_cores(facts):g}"),
        ("note", "set of GPUs", lambda facts: _gpu_models(facts.gpus)),
    )
    known = hosts_with_facts(hosts)
    fix = "Compare arms on equal hosts, because the slowest sets the pace. -H ^NAME leaves a host out."
    for level, name, value in questions:
        for each, _, mine, expected in differing_hosts(known, [value(facts) for _, facts in known]):
            what = f"The {name} differs from that of the other hosts."
            found = f"It is {mine} here, but {expected} on other hosts."
            yield each.finding(level, "alike", what, found, fix)


def _gpu_models(gpus: Sequence[str]) -> str:
    """Return the number of GPUs of each model as text, such as ``2 NVIDIA H200``; ``none`` without GPUs."""
    models = Counter(gpu.partition(": ")[2] or gpu for gpu in gpus)
    return ", ".join(f"{number} {model}" for model, number in sorted(models.items())) or "none"


RULES = (slots, clock, disk, limits, memory, alike)
