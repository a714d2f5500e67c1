"""Serve launches on one host: ``python -m compare.launch.agent``.

On this machine the agent is a child process. On any other host the carrier starts it, for example with ssh.

One pair of pipes carries the job to the host, and progress, results and logs back. Hosts need no shared
file system, and no process listens on a port. Both ends send keep-alive messages. The agent renews the
lease of the ranks only while messages arrive. When the pipe closes or stays silent, it ends every process
of a launch. So a host behind a failed link ends its ranks by itself.
"""

from __future__ import annotations

import os
import signal
import sys

from compare.launch.agent.launch import carry_out
from compare.launch.agent.machine import describe, free_port
from compare.launch.agent.protocol import ALIVE_SECONDS, FindPort, MessagePipe, Port, Start
from compare.launch.processes import adopt_orphans
from compare.schema.launch_files import LEASE_SECONDS

IDLE_SECONDS = 900.0
"""Maximum time without a message between launches.

The data set may have to be fetched and copied first. When the parent exits, the pipe closes at once.
"""


def main(pipe: MessagePipe) -> None:
    """Carry out one launch after the other until the parent is gone."""
    pipe.send(describe())
    while not pipe.closed and pipe.silent_seconds < IDLE_SECONDS:
        for message in pipe.receive():
            if isinstance(message, FindPort):
                pipe.send(Port(free_port()))
            if isinstance(message, Start):
                pipe.send(carry_out(message, pipe))
                if pipe.silent_seconds > LEASE_SECONDS:
                    return  # the parent is lost, and starts no further launch
                break
        else:
            pipe.keep_alive()
            pipe.wait(ALIVE_SECONDS)


def _own_pipes() -> MessagePipe:
    """Reserve standard input and output for messages.

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
    main(_own_pipes())
