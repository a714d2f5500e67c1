"""Serve launches on one host: ``python -m compare.launch.agent``.

On this machine the agent is a child process. On any other host the carrier starts it, for example with ssh.

One pair of pipes carries the jobs to the host, and progress, results and logs back. Hosts need no shared
file system, and no process listens on a port. Both ends send keep-alive messages. The process of a launch
renews the lease of the ranks only while messages arrive. When the pipe closes or stays silent, that process
ends everything of its launch. So a host behind a failed link ends its ranks by itself.
"""

from __future__ import annotations

import os
import signal
import sys

from compare.launch.agent.host import HostAgent
from compare.launch.agent.protocol import MessagePipe
from compare.launch.processes import adopt_orphans


def _own_pipes() -> MessagePipe:
    """Return a pipe of messages over standard input and output, which are then used for nothing else.

    What a library prints goes to standard error.
    """
    read, write = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return MessagePipe(read, write)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup SIGHUP stays ignored
            signal.signal(number, lambda *_: sys.exit(1))  # so that every ``finally`` runs
    adopt_orphans()
    HostAgent(_own_pipes()).serve()
