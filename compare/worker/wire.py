"""Count what a host really sends and receives, by the kernel's counters."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_COUNTERS = Path("/proc/self/net/dev")  # those of this process's own network, unlike /sys
_RECEIVED, _SENT = 0, 8
"""Their columns after the interface's name."""


class Bytes(NamedTuple):
    """Bytes on an interface since it came up."""

    sent: int
    received: int


def read_bytes_on(interface: str) -> Bytes:
    """Return the bytes that the kernel counted on an interface.

    Raises:
        LookupError: there is no such interface.
    """
    return parse_counters(_COUNTERS.read_text(), interface)


def parse_counters(text: str, interface: str) -> Bytes:
    """Find an interface in the kernel's table.

    Raises:
        LookupError: it is not there.
    """
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() == interface:
            numbers = counters.split()
            return Bytes(sent=int(numbers[_SENT]), received=int(numbers[_RECEIVED]))
    raise LookupError(f"the kernel counts no interface {interface}")
