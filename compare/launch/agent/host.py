"""Carry out the launches on one host, each in a process of its own.

The parent has one connection to a host, with any number of launches in it. The agent forks for each launch,
and passes messages on. A launch lives as long as messages of the parent reach it, because they renew its
lease. If the agent or the parent is killed, the process of each launch ends what it has started, and exits.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from compare.errors import HostError
from compare.launch.agent.launch import carry_out
from compare.launch.agent.machine import describe, free_port
from compare.launch.agent.protocol import (
    ALIVE_SECONDS,
    BACKLOG_BYTES,
    Alive,
    Exited,
    FindPort,
    MessagePipe,
    OfLaunch,
    Port,
    Refused,
    Start,
    decode,
    encode,
)
from compare.launch.processes import adopt_orphans
from compare.schema.launch_files import LEASE_SECONDS

IDLE_SECONDS = 900.0
"""Maximum time without a message from the parent while no launch is alive.

The parent may have to fetch and copy the data set first. Its exit is noticed at once, as the pipe closes.
"""
SILENT_SECONDS = 10.0
"""Maximum time without a message from the process of a launch."""
_LAST_SECONDS = 5.0
"""Maximum time to send the last messages of a launch."""
_SHORT_BYTES = 1 << 16
"""A message of this size or more carries a file or many arrivals, and is passed on undecoded."""


class HostAgent:
    """The agent of one host, and the processes of its launches."""

    def __init__(self, pipe: MessagePipe) -> None:
        self._pipe = pipe
        self._launches: dict[str, _LaunchProcess] = {}
        self._is_lost = False
        """Whether the parent was silent for so long that a launch ended."""

    def serve(self) -> None:
        """Carry out launches until the parent is gone, then end those that are left."""
        self._pipe.send(describe())
        try:
            while not self._is_abandoned():
                self._take_orders()
                self._pass_back()
                self._pipe.keep_alive()
                self._wait()
        finally:
            for launch in self._launches.values():
                launch.pipe.close()  # its process then ends the launch, and exits
            for launch in self._launches.values():
                launch.wait()

    def _is_abandoned(self) -> bool:
        """Return whether the parent has exited, or sends no messages any more."""
        is_idle = not self._launches and self._pipe.silent_seconds > IDLE_SECONDS
        return self._pipe.closed or self._is_lost or is_idle

    def _take_orders(self) -> None:
        for message in self._pipe.receive():
            match message:
                case Alive():
                    for launch in self._launches.values():
                        launch.pipe.keep_alive()
                case FindPort():
                    self._pipe.send(Port(free_port()))
                case OfLaunch(name, data):
                    if name not in self._launches and isinstance(decode(data), Start):
                        self._launches[name] = _LaunchProcess(self._close_inherited)
                    if name in self._launches:  # otherwise it has just ended
                        self._launches[name].pipe.send_encoded(data)

    def _pass_back(self) -> None:
        """Pass on what the launches send, as fast as the parent reads, and remove those that ended."""
        for name, launch in [*self._launches.items()]:
            if self._pipe.backlog_bytes < BACKLOG_BYTES:
                for data in launch.receive():
                    self._pipe.send(OfLaunch(name, data))
            if launch.problem:
                refused = Refused(
                    kind=HostError.__name__,
                    what="The launch was lost.",
                    found=launch.problem,
                    remedy="Was it killed or stopped by hand, or was memory short there? Look for the "
                    "reason, and run again.",
                )
                self._pipe.send(OfLaunch(name, encode(refused)))
            if launch.pipe.closed or launch.problem:
                del self._launches[name]
                launch.pipe.close()
                launch.wait()
                self._is_lost = self._pipe.silent_seconds > LEASE_SECONDS  # it starts no further launch

    def _wait(self) -> None:
        """Wait until a pipe can be read or written, at most half a second."""
        poll = select.poll()
        # What launches send is read only while the parent reads as well.
        launches = self._launches.values() if self._pipe.backlog_bytes < BACKLOG_BYTES else ()
        for pipe in (self._pipe, *(launch.pipe for launch in launches)):
            for descriptor, event in pipe.waits_for():
                poll.register(descriptor, event)
        poll.poll(ALIVE_SECONDS * 1000)

    def _close_inherited(self) -> None:
        """Close, in the process of a new launch, the pipes of the agent and of other launches."""
        for pipe in (self._pipe, *(launch.pipe for launch in self._launches.values())):
            pipe.close()


class _LaunchProcess:
    """The process of one launch, and the pipes to it."""

    def __init__(self, close_inherited: Callable[[], None]) -> None:
        self.problem = ""
        """Why the process is lost; empty while it is not."""
        orders, answers = os.pipe(), os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(orders[1])
            os.close(answers[0])
            close_inherited()
            _carry_out_one(MessagePipe(orders[0], answers[1]))
        os.close(orders[0])
        os.close(answers[1])
        self.pipe = MessagePipe(answers[0], orders[1])
        self._has_ended = False

    def receive(self) -> list[bytes]:
        """Return the encoded messages that the process sent, without keep-alive messages.

        ``problem`` is set if the process was killed, or was silent for too long.
        """
        passed_on = []
        for data in self.pipe.receive_encoded():
            message = decode(data) if len(data) < _SHORT_BYTES else None
            self._has_ended = self._has_ended or isinstance(message, Exited | Refused)
            if not isinstance(message, Alive):
                passed_on.append(data)
        if self.pipe.closed and not self._has_ended:
            self.problem = "Its process there was killed."
        elif self.pipe.silent_seconds > SILENT_SECONDS:
            self.problem = f"Its process there sent nothing for {SILENT_SECONDS:g} s."
        return passed_on

    def wait(self) -> None:
        """Wait until the process has exited; a lost one is killed, and its sweeper ends the launch."""
        with suppress(ProcessLookupError, ChildProcessError):
            if self.problem:
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _carry_out_one(pipe: MessagePipe) -> NoReturn:
    """Carry out the launch of the first ``Start`` message, and exit."""
    try:
        adopt_orphans()
        while not pipe.closed:
            for message in pipe.receive():
                if isinstance(message, Start):
                    pipe.send(carry_out(message, pipe))
                    pipe.push(_LAST_SECONDS)
                    return  # type: ignore[misc]  # the process exits
            pipe.wait(ALIVE_SECONDS)
    finally:  # nothing of the agent's own program may run on here
        os._exit(0)
