"""Wait for a condition, look whether a process is alive, and find a free port."""

import socket
import time
from contextlib import closing

import psutil


def wait_until(condition, seconds=10.0, tick=lambda: None):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        tick()
        time.sleep(0.02)


def is_alive(pid):
    """Return whether a process exists and is no zombie; it may exit between two looks."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
