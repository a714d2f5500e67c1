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
    errors = {} if lost is None else lost
    by_pipe = {agent.pipe: agent for agent in agents if agent not in errors}
    with PipePoll(by_pipe) as poll:
        while True:
            wait = min(deadline, attend_at) - time.monotonic()
            ready = [by_pipe[pipe] for pipe in poll.wait(max(0.0, wait))]
            now = time.monotonic()
            may_end = is_due = now >= min(deadline, attend_at)
            for agent, do in [
                *((agent, agent.receive) for agent in ready),
                *((agent, agent.attend) for agent in (agents if is_due else ())),
            ]:
                if agent in errors:
                    continue
                try:
                    may_end = do() or may_end
                except RingsideError as error:
                    if lost is None:
                        raise
                    errors[agent], may_end = error, True
                poll.update(agent.pipe, is_lost=agent in errors)
            attend_at = now + _ATTEND_SECONDS if is_due else attend_at
            if may_end and lost is None:
                # Others sent nothing new, and hundreds of hosts would be looked at after each message.
                _raise_first_error(agents if is_due else ready)
            if may_end and until():
                return True
            if now >= deadline:
                return False


def _raise_first_error(agents: Sequence[Connection]) -> None:
    """Raise the error of the first launch that has one, and set that launch's ``error`` to None."""
    for agent in agents:
        for link in agent.launches.values():
            if link.error:
                error, link.error = link.error, None
                raise error
