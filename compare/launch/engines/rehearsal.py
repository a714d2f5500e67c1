"""Rehearse a run over hosts: make such hosts on this machine, joined by a limited network.

A rehearsed host is a set of Linux namespaces, with its own network, hostname, processes, /tmp and /dev/shm.
It shares the cores, the memory and nearly all other files with this machine. All hosts are inside a *room*,
which is such a set of namespaces as well. mpirun and horovodrun start in the room.

No namespace or interface has a name outside the room, so none is left behind. The room's first process exits
when this program closes its pipe, or is killed. Then the kernel kills every process of the room, and removes
its namespaces, interfaces and mounts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from compare import PACKAGE_ROOT
from compare.errors import UnavailableError
from compare.launch.engines import Allocation, Carrier, Options, ssh_stand_in, whole_number
from compare.schema.hosts import MAX_SLOTS, Host, Link, is_local, read_latency, read_rate

_MOST_HOSTS = 200
"""Maximum number of hosts, because they share a network of 254 addresses."""
OPTIONS: Options = {
    "hosts": whole_number(1, _MOST_HOSTS),
    "slots": whole_number(1, MAX_SLOTS),
    "rate": read_rate,
    "latency": read_latency,
}
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_PACKAGES |= {"mount": "mount", "hostname": "hostname"}
_PROGRAM = Path(__file__).with_suffix(".sh")
_NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid")
_ENTER = ("-n", "-u", "-m", "-i", "-p")
_BURST_SECONDS = 0.001
"""Size of the burst that an idle link may send at once, in seconds at its full rate.

With less, a busy machine does not reach the rate. With more, data is too fast whenever the direction changes.
"""
_LEAST_BURST_BYTES = 16 * 1024
_MOST_SEGMENT_BYTES = 64 * 1024
"""Maximum size of a TCP segment, which is that of a link without a limited rate."""
_SEGMENTS_IN_A_BURST = 8
"""Number of TCP segments that fit into a burst.

tbf would cut a segment that exceeds its burst into packets, and a timer for each costs too much on two cores.
Segments are smaller than a burst, because a link loses rate while it waits for a large one.
"""
_QUEUE_SECONDS = 0.05
_QUEUE_PACKETS = 100_000
"""Maximum number of packets that netem delays at a time, more than any rate needs."""

# What the kernel printed, and what to do. The first that fits counts.
_REMEDIES = (
    (
        ("kind is unknown", "qdisc not found"),
        "This kernel lacks netem (latency) or tbf (rate). Load them with modprobe, or leave that option out.",
    ),
    (
        ("not permitted", "ermission denied", "ead-only"),
        "Only root may make namespaces on this system: use sudo, or a container with --privileged.",
    ),
    (("",), "Rehearse on Linux with network namespaces, veth and a bridge, as root."),
)


class Rehearsal(Carrier, frozen=True):
    """The carrier that starts processes in a rehearsal's room and in its hosts."""

    hosts: int
    """Number of hosts."""
    link: Link = Link()
    room: int = 0
    """Process id of the room's first process; 0 before the room is made."""
    with_gpus: bool = False
    """Whether the hosts see the GPUs of this machine, all of them the same."""
    as_user: bool = False
    """Whether the room has a user namespace, in which this user is root, because the user is not root."""

    def argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command that executes ``argv`` in a host, or in the room if the host is this machine."""
        user = ("-U", "--preserve-credentials") if self.as_user else ()
        enter = ("nsenter", "-t", str(self.room), *user, *_ENTER, "--")
        return (*enter, *(() if is_local(host) else ("sh", f"/run/rehearsal/{host.name}")), *argv)

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Make the room and its hosts, yield a carrier that reaches them, and remove them after the block.

        Raises:
            UnavailableError: this machine cannot make hosts, or this user may not.
        """
        room = subprocess.Popen(
            _room_command(self.hosts, self.link, with_gpus=self.with_gpus),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches this program alone, which ends its launches first.
            start_new_session=True,
            env=os.environ | {"PATH": _path()},
        )
        try:
            _require_up(room, self.hosts)
            (first,) = psutil.Process(room.pid).children()
            yield msgspec.structs.replace(self, room=first.pid, as_user=os.geteuid() != 0)
        finally:
            room.communicate()  # closes the pipe

    def _by_hand(self, host: Host) -> str:
        return shlex.join(self.argv(host, ["sh"]))

    def _remote_shell(self, _hosts: Sequence[Host]) -> str:
        return ssh_stand_in('exec sh "/run/rehearsal/$host" sh -c "$*"')


def allocate(options: Mapping[str, Any], *, with_gpus: bool = False) -> Allocation:
    """Return the allocation of a rehearsal with the options of ``--engine``; its hosts are made later.

    They see this machine's GPUs if ``with_gpus`` is set.
    """
    hosts, slots = options.get("hosts", 2), options.get("slots", 1)
    link = Link(bits_per_second=options.get("rate"), latency_seconds=options.get("latency", 0.0))
    named = tuple(Host(f"rehearsal-{number}", slots, source="rehearsed") for number in range(1, hosts + 1))
    return Allocation(
        named, Rehearsal(hosts, link, with_gpus=with_gpus), "a rehearsal on this machine", rehearsed=link
    )


def _room_command(hosts: int, link: Link, *, with_gpus: bool) -> list[str]:
    """Return the command that makes the room and its hosts.

    Raises:
        UnavailableError: a program is missing.
    """
    for program, package in _PACKAGES.items():
        if shutil.which(program, path=_path()) is None:
            raise UnavailableError(
                "Hosts cannot be rehearsed here.",
                found=f"The program {program} is missing.",
                remedy=f"apt-get install {package}",
            )
    user = ("--user", "--map-root-user") if os.geteuid() else ()  # only root may do without
    made = ("unshare", *user, *_NAMESPACES, "--fork", "--kill-child", "--mount-proc")
    folders = map(str, _folders_below_tmp())
    hidden = "" if with_gpus else "CUDA_VISIBLE_DEVICES="
    return [*made, "sh", str(_PROGRAM), "room", str(hosts), *link_settings(link), hidden, *folders]


def link_settings(link: Link) -> tuple[str, str, str]:
    """Return the words that tell tc a link's rate and its latency, and ip the size of its segments.

    Each of the three texts is empty if the link has no such limit.
    """
    rate = latency = segment = ""
    if link.bits_per_second is not None:
        burst = max(_LEAST_BURST_BYTES, round(link.bits_per_second / 8 * _BURST_SECONDS))
        rate = f"tbf rate {link.bits_per_second}bit burst {burst} latency {_QUEUE_SECONDS * 1e3:g}ms"
        segment = f"gso_max_size {min(_MOST_SEGMENT_BYTES, burst // _SEGMENTS_IN_A_BURST)}"
    if link.latency_seconds:
        latency = f"netem delay {link.latency_seconds * 1e6:.0f}us limit {_QUEUE_PACKETS}"
    return rate, latency, segment


def _require_up(room: subprocess.Popen[str], hosts: int) -> None:
    """Wait until all hosts of a room are up; raise an ``UnavailableError`` if the room exits before."""
    assert room.stdout is not None  # noqa: S101 -- it is a pipe
    if all(room.stdout.readline() == "up\n" for _ in range(hosts)):
        return
    printed = room.communicate()[1].strip()
    raise UnavailableError(
        "Hosts cannot be rehearsed here.",
        found=printed or f"The first process exited with status {room.returncode}.",
        remedy=next(remedy for marks, remedy in _REMEDIES if any(mark in printed for mark in marks)),
    )


def _path() -> str:
    """Return PATH with the folders of root's programs at its end."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _folders_below_tmp() -> list[Path]:
    """Return the folders of Ringside and its Python that a private /tmp would hide."""
    folders = [PACKAGE_ROOT, *(Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix))]
    folders += [Path(sys.prefix), Path(sys.base_prefix)]
    return sorted({folder for folder in map(Path, folders) if folder.is_relative_to("/tmp")})  # noqa: S108
