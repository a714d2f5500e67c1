"""Serve launches on one host, each in a process of its own: ``python -m compare.launch.agent``.

On this machine the agent is a child process. On any other host a ``Carrier`` starts it, for example with ssh.

One pair of pipes carries the jobs of all launches to the host, and progress, results and logs back. Hosts
need no shared file system, and no process listens on a port. The agent forks for each launch, and passes
messages on. Both ends send keep-alive messages. The process of a launch renews the lease of the ranks only
while messages arrive. When the pipe closes or stays silent, that process ends everything of its launch. So a
host behind a failed link ends its ranks by itself. If that process is killed, the agent ends its launch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from compare.errors import HostError
from compare.launch.agent.launch import carry_out, clean_up
from compare.launch.agent.machine import describe, free_port
from compare.launch.agent.protocol import (
    ALIVE_SECONDS,
    BACKLOG_BYTES,
    Alive,
    Exited,
    FindPort,
    LaunchMessage,
    MessagePipe,
    OfLaunch,
    Port,
    Refused,
    Start,
    wait_for,
)
from compare.launch.processes import Segments, adopt_orphans
from compare.schema.launch_files import LEASE_SECONDS

IDLE_SECONDS = 900.0
"""Maximum time without a message from the parent while no launch is alive.

The parent may have to fetch and copy the data set first. If it exits, the pipe closes, which shows at once.
"""
SILENT_SECONDS = 10.0
"""Maximum time without a message from the process of a launch."""
_LAST_SECONDS = 5.0
"""Maximum time to send the last messages of a launch."""


class HostAgent:
    """The agent of one host, and the processes of its launches."""

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        self._launches: dict[str, _LaunchProcess] = {}
        self._parent_is_lost = False
        """Whether the parent was silent for so long that a launch was ended."""

    def serve(self) -> None:
        """Carry out launches until the parent is gone, and then end those that are left."""
        self._pipe.send(describe())
        try:
            while not self._is_abandoned():
                self._handle_messages()
                self._forward_to_parent()
                self._pipe.keep_alive()
                self._wait()
        finally:
            for launch in self._launches.values():
                launch.pipe.close()  # its process then ends the launch, and exits
            for launch in self._launches.values():
                launch.wait()

    def _is_abandoned(self) -> bool:
        """Return whether the parent has exited, or no longer sends messages."""
        is_idle = not self._launches and self._pipe.silent_seconds > IDLE_SECONDS
        return self._pipe.closed or self._parent_is_lost or is_idle

    def _handle_messages(self) -> None:
        for message in self._pipe.receive():
            match message:
                case Alive():
                    for launch in self._launches.values():
                        launch.pipe.send(message)
                case FindPort():
                    self._pipe.send(Port(free_port()))
                case OfLaunch(name, order):
                    if isinstance(order, Start):
                        self._start(name, order)
                    elif name in self._launches:  # otherwise the launch has just ended
                        self._launches[name].pipe.send(order)

    def _start(self, name: str, order: Start) -> None:
        """Start a launch; an earlier one of this name has sent its end, and may be about to exit."""
        if earlier := self._launches.pop(name, None):
            earlier.pipe.close()
            earlier.wait()
        launch_pipes = [launch.pipe for launch in self._launches.values()]
        self._launches[name] = _LaunchProcess(order, [self._pipe, *launch_pipes])

    def _forward_to_parent(self) -> None:
        """Send the parent what the launches send, as fast as it reads, and remove launches that ended."""
        for name, launch in [*self._launches.items()]:
            if self._pipe.backlog_bytes < BACKLOG_BYTES:
                for message in launch.receive():
                    self._pipe.send(OfLaunch(name, message))
            if launch.pipe.closed or launch.problem:
                del self._launches[name]
                launch.pipe.close()
                launch.wait()
                self._parent_is_lost = self._pipe.silent_seconds > LEASE_SECONDS  # no launch follows
            if launch.problem:
                clean_up(launch.start, launch.segments, while_waiting=self._pipe.keep_alive)
                refused = Refused(
                    kind=HostError.__name__,
                    what="The launch was lost.",
                    found=launch.problem,
                    remedy="Was it killed or stopped by hand, or was memory short there? Look for the "
                    "reason, and run again.",
                )
                self._pipe.send(OfLaunch(name, refused))

    def _wait(self) -> None:
        """Wait at most a second until a pipe can be read or written."""
        # What launches send is read only while the parent reads as well.
        launches = self._launches.values() if self._pipe.backlog_bytes < BACKLOG_BYTES else ()
        wait_for([self._pipe, *(launch.pipe for launch in launches)], ALIVE_SECONDS)


class _LaunchProcess:
    """The process of one launch, which the constructor forks, and the pipes to and from it.

    The new process closes the ``inherited`` pipes of the agent.
    """

    def __init__(self, start: Start, inherited: Iterable[MessagePipe]) -> None:
        self.problem = ""
        """Why the process is lost, as a sentence; empty while it is not."""
        self.start = start
        # A clock of files may be some milliseconds behind.
        self.segments = Segments(start.segments, time.time() - 1) if start.segments else None
        orders, answers = os.pipe(), os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(orders[1])
            os.close(answers[0])
            for pipe in inherited:
                pipe.close()
            try:
                adopt_orphans()
                to_agent = MessagePipe(orders[0], answers[1])
                to_agent.send(carry_out(start, to_agent, self.segments))
                to_agent.push(_LAST_SECONDS)
            finally:  # nothing of the agent's own program may run on here
                os._exit(0)
        os.close(orders[0])
        os.close(answers[1])
        self.pipe = MessagePipe(answers[0], orders[1])
        self._has_ended = False

    def receive(self) -> list[LaunchMessage]:
        """Return the messages that the process sent, without keep-alive messages.

        ``problem`` is set if the process was killed, or was silent for too long.
        """
        messages = [message for message in self.pipe.receive() if isinstance(message, LaunchMessage)]
        self._has_ended = self._has_ended or any(isinstance(each, Exited | Refused) for each in messages)
        if self.pipe.closed and not self._has_ended:
            self.problem = "Its process there was killed."
        elif self.pipe.silent_seconds > SILENT_SECONDS:
            self.problem = f"Its process there sent nothing for {SILENT_SECONDS:g} s."
        return messages

    def wait(self) -> None:
        """Wait until the process has exited; if it is lost, kill it first."""
        with suppress(ProcessLookupError, ChildProcessError):
            if self.problem:
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup SIGHUP stays ignored
            signal.signal(number, lambda *_: sys.exit(1))  # so that every ``finally`` runs
    adopt_orphans()
    read, write = os.dup(0), os.dup(1)
    # Nothing else can use the pipes from now on: what a library prints goes to standard error.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    HostAgent(MessagePipe(read, write)).serve()
