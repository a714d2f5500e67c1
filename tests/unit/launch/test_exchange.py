"""Test how the parent divides its time among the agents of many hosts."""

import os
import select
import time
from itertools import groupby

import pytest

from compare.launch.agent import exchange

HOSTS = 20
TAKES_SECONDS = 0.02


class AFloodedAgent:
    """An agent whose messages never end and take long to handle; it is its own pipe."""

    def __init__(self, number, done):
        self.number, self.done, self.pipe, self.launches = number, done, self, {}
        self.received_at = 0.0
        self.readable, self.writable = os.pipe()
        os.write(self.writable, b"message")

    def waits_for(self):
        return [(self.readable, select.EPOLLIN)]

    def receive(self):
        time.sleep(TAKES_SECONDS)
        self.received_at = time.monotonic()
        self.done.append(("receive", self.number))
        return False

    def attend(self):
        self.done.append(("attend", self.number))
        return False


@pytest.fixture
def flooded():
    """Return agents, and the list of what was done with them."""
    done = []
    agents = [AFloodedAgent(number, done) for number in range(HOSTS)]
    yield agents, done
    for agent in agents:
        os.close(agent.readable)
        os.close(agent.writable)


def test_no_host_waits_until_the_messages_of_all_others_are_handled(flooded, monkeypatch):
    agents, done = flooded
    monkeypatch.setattr(exchange, "_SERVE_SECONDS", 2.5 * TAKES_SECONDS)
    monkeypatch.setattr(exchange, "_ATTEND_SECONDS", 0.0)
    exchange.exchange_until(agents, lambda: len(done) > 20 * HOSTS, 30)
    by_action = groupby(done, lambda one: one[0])
    received = [[number for _, number in group] for action, group in by_action if action == "receive"]
    assert max(map(len, received)) <= 3
    assert {number for numbers in received for number in numbers} == set(range(HOSTS)), "each has its turn"
