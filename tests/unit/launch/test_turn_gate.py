"""Ranks wait for their turns at the gate of their agent."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading

import psutil
import pytest

from compare.launch.agent.turn_gate import TurnGate
from compare.schema.turns import GO_ON, Memory, Turn
from compare.worker.turn_pipes import TurnPipes
from tests.waiting import wait_until

RANK = """
import sys, threading
from pathlib import Path
from compare.schema.turns import Memory
from compare.worker.turn_pipes import TurnPipes
threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()  # as Horovod's
pipes = TurnPipes(Path(sys.argv[1]), int(sys.argv[2]))
while (turn := pipes.wait(0.5, Memory(peak_bytes=1))).number:
    print(turn.number, turn.untimed_steps, turn.timed_steps, flush=True)
print("finished", flush=True)
"""

STARTS_A_WORKER = r"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import os; p = os.getppid()\nwhile os.getppid() == p: pass"])
"""


@pytest.fixture
def gate(tmp_path):
    """Make a gate of some ranks, and close its pipes."""
    made = []

    def make(ranks, *, stops=False):
        made.append(TurnGate(tmp_path, ranks, stops=stops))
        return made[-1]

    yield make
    for descriptor in (made[0]._arrivals, *made[0]._turns.values()):
        os.close(descriptor)


@pytest.fixture
def start(tmp_path):
    """Start the process of a rank."""
    started = []

    def begin(rank):
        command = [sys.executable, "-c", RANK, str(tmp_path), str(rank)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def arrivals(gate, seconds=20):
    """Wait until all ranks of a gate have arrived."""
    found = []
    wait_until(lambda: found.extend(gate.arrived()) or found, seconds)
    return sorted(found, key=lambda arrival: arrival.rank)


def is_stopped(pid):
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@pytest.mark.parametrize("stops", [False, True])
def test_gate_gives_every_rank_each_turn_and_stops_its_threads_between(gate, start, stops):
    gate = gate(2, stops=stops)
    ranks = [start(0)]
    select.select([gate], [], [], 20)
    assert gate.arrived() == [], "it waits for the last rank"
    ranks.append(start(1))
    for number in (1, 2):
        found = arrivals(gate)
        assert [arrival.rank for arrival in found] == [0, 1]
        assert [arrival.pid for arrival in found] == [process.pid for process in ranks]
        wait_until(lambda: {is_stopped(process.pid) for process in ranks} == {stops}, 5)
        gate.go(Turn(number=number, untimed_steps=3, timed_steps=40))
        assert [process.stdout.readline() for process in ranks] == [f"{number} 3 40\n"] * 2
    arrivals(gate)
    gate.go(GO_ON)
    assert [process.stdout.read() for process in ranks] == ["finished\n"] * 2


def test_gate_stops_what_a_waiting_rank_has_started(gate, start, monkeypatch):
    monkeypatch.setitem(globals(), "RANK", STARTS_A_WORKER + RANK)
    gate = gate(1)
    rank = start(0)
    arrivals(gate)
    (worker,) = psutil.Process(rank.pid).children()
    wait_until(lambda: is_stopped(worker.pid), 5)
    gate.go(Turn(number=1))
    wait_until(lambda: not is_stopped(worker.pid), 5)
    arrivals(gate)
    gate.go(GO_ON)
    worker.kill()


@pytest.mark.parametrize("stops", [False, True])
def test_gate_gives_turns_although_a_rank_was_killed(gate, start, stops):
    gate = gate(2, stops=stops)
    first, second = start(0), start(1)
    arrivals(gate)
    second.kill()
    second.wait()
    gate.go(GO_ON)
    assert first.stdout.read() == "finished\n"


def test_rank_exits_when_the_agent_is_gone(gate, start):
    gate = gate(1)
    rank = start(0)
    arrivals(gate)
    gate.go(Turn(number=1))
    arrivals(gate)
    os.close(gate._turns.pop(0))
    assert rank.wait(20) == 1


def test_rank_measures_its_wait_and_its_cpu_time(tmp_path, gate, monkeypatch):
    # This process is the rank, and must not be stopped for children that other tests have started.
    monkeypatch.setattr(psutil, "process_iter", lambda _: [])
    gate, turns = gate(1), []
    pipes = TurnPipes(tmp_path, 0)
    rank = threading.Thread(target=lambda: turns.append(pipes.wait(0.25, Memory(peak_bytes=1))))
    rank.start()
    assert arrivals(gate)[0].step_seconds == 0.25
    gate.go(GO_ON)
    rank.join(20)
    assert turns == [GO_ON]
    assert pipes.waited_ns > 0
    assert 0 <= pipes.waited_cpu_ns < 20e9
