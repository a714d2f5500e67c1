"""Connect to the agents of all hosts of a run, and exchange messages with them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from compare.errors import RingsideError
from compare.launch.agent.connection import Connection
from compare.launch.agent.protocol import PipePoll
from compare.launch.engines import Carrier
from compare.launch.engines.commands import OPENED_AT_ONCE, enough_files
from compare.launch.signals import postponed_interrupts
from compare.schema.hosts import Host

_ATTEND_SECONDS = 0.5
"""Time between two looks at all agents, some of them due for a keep-alive message."""
_SERVE_SECONDS = 0.5
"""Maximum time for the messages that have arrived, so that no host waits for those of hundreds of others.

To write the files of one round may take seconds. What is left is ready again at the next look.
"""
_CLOSE_SECONDS = 3.0
"""Maximum time for all connections to close after a run."""


@contextmanager
def connected(
    hosts: Sequence[Host], carrier: Carrier, *, lost: dict[Connection, RingsideError] | None = None
) -> Iterator[list[Connection]]:
    """Start an agent on every host, yield the connections in the order of hosts, and close them at the end.

    At most ``OPENED_AT_ONCE`` agents are being started at a time. The last need not have answered yet when
    all are yielded. ``lost`` is as in ``exchange_until``.

    Raises:
        RingsideError: without ``lost``, the error of an agent; see ``Connection.receive``.
    """

    def may_open() -> bool:
        return sum(agent.ready is None and agent not in (lost or ()) for agent in agents) < OPENED_AT_ONCE

    with enough_files(len(hosts)):
        agents: list[Connection] = []
        try:
            for host in hosts:
                if not may_open():
                    # Each connection has a time limit of its own, after which it is lost.
                    exchange_until(agents, may_open, math.inf, lost=lost)
                with postponed_interrupts():  # an interrupt would leave a process that just started
                    agents.append(Connection(host, carrier))
            yield agents
        finally:
            for agent in reversed(agents):  # a launcher's own agent is the last, and ends it before its ranks
                agent.hang_up()
            deadline = time.monotonic() + _CLOSE_SECONDS
            for agent in agents:
                agent.wait_closed(deadline - time.monotonic())


def exchange_until(
    agents: Sequence[Connection],
    until: Callable[[], bool],
    seconds: float,
    *,
    lost: dict[Connection, RingsideError] | None = None,
) -> bool:
    """Exchange messages with agents until ``until`` returns True; return False if it does not in time.

    The condition is checked after every message that may end a wait, and twice a second. If the dictionary
    ``lost`` is given, it receives the error of each lost agent, and no error is raised, not even that of a
    launch.

    Raises:
        RingsideError: without ``lost``, the error of an agent or a launch; see ``Connection.receive``.
    """
    deadline = time.monotonic() + seconds
    attend_at = -math.inf
    with PipePoll(agent.pipe for agent in agents if agent not in (lost or ())) as poll:
        exchange = _Exchange(agents, poll, lost)
        while True:
            served, may_end = exchange.serve(min(deadline, attend_at) - time.monotonic())
            now = time.monotonic()
            if is_due := now >= min(deadline, attend_at):
                exchange.attend()
                attend_at, may_end = now + _ATTEND_SECONDS, True
            if may_end and lost is None:
                # Others sent nothing new, and hundreds of hosts would be looked at after each message.
                _raise_first_error(agents if is_due else served)
            if may_end and until():
                return True
            if now >= deadline:
                return False


class _Exchange:
    """One wait for the messages of agents; it keeps the error of each agent that is lost, or raises it."""

    def __init__(
        self, agents: Sequence[Connection], poll: PipePoll, lost: dict[Connection, RingsideError] | None
    ) -> None:
        self._agents = agents
        self._by_pipe = {agent.pipe: agent for agent in agents}
        self._poll = poll
        self._raises = lost is None
        self._errors = {} if lost is None else lost

    def serve(self, seconds: float) -> tuple[list[Connection], bool]:
        """Wait at most ``seconds`` for messages, and handle those of some agents.

        Returns:
            These agents, and whether one of the messages may end a wait.
        """
        # Those that were left at the last look come first.
        ready = sorted(self._poll.wait(max(0.0, seconds)), key=lambda pipe: pipe.received_at)
        ends_at, ends_wait = time.monotonic() + _SERVE_SECONDS, False
        served = []
        for agent in (self._by_pipe[pipe] for pipe in ready):
            if time.monotonic() >= ends_at:
                break
            ends_wait = self._ends_wait(agent, agent.receive) or ends_wait
            served.append(agent)
        return served, ends_wait

    def attend(self) -> None:
        """Attend to every agent."""
        for agent in self._agents:
            self._ends_wait(agent, agent.attend)

    def _ends_wait(self, agent: Connection, do: Callable[[], bool]) -> bool:
        if agent in self._errors:
            return False
        try:
            ends_wait = do()
        except RingsideError as error:
            if self._raises:
                raise
            self._errors[agent], ends_wait = error, True
        self._poll.update(agent.pipe, is_lost=agent in self._errors)
        return ends_wait


def _raise_first_error(agents: Sequence[Connection]) -> None:
    """Raise the error of the first launch that has one, and set that launch's ``error`` to None."""
    for agent in agents:
        for link in agent.launches.values():
            if link.error:
                error, link.error = link.error, None
                raise error
