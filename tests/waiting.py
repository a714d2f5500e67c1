"""Wait for a condition, and find a free port."""

import socket
import time
from contextlib import closing


def wait_until(condition, seconds=10.0, tick=lambda: None):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        tick()
        time.sleep(0.02)


def free_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
