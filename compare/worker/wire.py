"""Count what a host really sends and receives, by the kernel's counters."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_COUNTERS = Path("/proc/self/net/dev")  # those of this process's own network, unlike /sys
_RECEIVED, _SENT = 0, 8
"""Columns of bytes after the interface's name; the column after each has the packets."""


class Counters(NamedTuple):
    """Bytes and packets on an interface since it came up."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int


def read_counters(interface: str) -> Counters:
    """Return the bytes and packets that the kernel has counted on an interface.

    Raises:
        LookupError: there is no such interface.
    """
    return parse_counters(_COUNTERS.read_text(), interface)


def parse_counters(text: str, interface: str) -> Counters:
    """Return the counters of an interface from the text of ``/proc/net/dev``.

    Raises:
        LookupError: the text has no such interface.
    """
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == interface:
            numbers = counters.split()
            return Counters(
                sent_bytes=int(numbers[_SENT]),
                received_bytes=int(numbers[_RECEIVED]),
                sent_packets=int(numbers[_SENT + 1]),
                received_packets=int(numbers[_RECEIVED + 1]),
            )
    raise LookupError(f"the kernel counts no interface {interface}")
