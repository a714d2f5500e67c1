"""Look up the addresses of hosts by their names."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Sequence

LOOKUP_SECONDS = 10.0
"""Maximum time for all names together."""

_AT_ONCE = 64


def addresses_of(names: Sequence[str], seconds: float = LOOKUP_SECONDS) -> list[str]:
    """Return an IPv4 address of every name, in order; empty for a name without one.

    Names that are not found within ``seconds`` count as names without an address.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    found: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    for _ in range(min(_AT_ONCE, len(names))):
        # A name server that hangs must not hold up an exit, so no pool: its threads are joined then.
        threading.Thread(target=_look_up, args=(waiting, found), daemon=True).start()
    until, addresses = time.monotonic() + seconds, dict[str, str]()
    try:
        for _ in names:
            addresses.update([found.get(timeout=max(0.0, until - time.monotonic()))])
    except queue.Empty:
        pass
    return [addresses.get(name, "") for name in names]


def _look_up(waiting: queue.SimpleQueue[str], found: queue.SimpleQueue[tuple[str, str]]) -> None:
    while True:
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            found.put((name, socket.gethostbyname(name)))
        except (OSError, UnicodeError):
            found.put((name, ""))
