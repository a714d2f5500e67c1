"""Stand in for the agents of many hosts: answer over the real pipes as they would, but run no rank.

``python -m tests.bench.host_agents SOCKET PLAN`` listens at a socket. What starts an agent on a host connects
to it, and passes its own standard streams on (``CONNECT``). A process is then forked for that host, which
imports nothing more, so hundreds of hosts fit into the memory of one machine. All end with standard input.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from compare import __version__
from compare.launch.agent.protocol import (
    ALIVE_SECONDS,
    Alive,
    End,
    Exited,
    FileData,
    FindPort,
    Go,
    MessagePipe,
    OfLaunch,
    Port,
    RankNews,
    Ready,
    Start,
    Started,
    Waiting,
    wait_for,
)
from compare.schema.job import Progress, RankExit, Stage
from compare.schema.launch_files import LaunchFiles
from compare.schema.results import RankResult
from compare.schema.turns import Arrival, Memory, Turn

CONNECT = """\
import array, os, socket, sys
at = socket.socket(socket.AF_UNIX)
at.connect(sys.argv[1])
streams = array.array("i", (0, 1, 2))
at.sendmsg([sys.argv[2].encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
for stream in streams:
    os.close(stream)
os._exit((at.recv(1) or b"\\xff")[0])
"""
"""Python code that passes its streams to the socket, and exits with the status of the host's agent."""
STEP_SECONDS = 0.01
_PREPARE_SECONDS = 0.5
"""Time in which ranks load their libraries and join their group."""
_UNTIMED_SECONDS = 0.3
"""Time of what ranks do between two waits apart from timed turns: the warm-up, and the last measurements."""
_LOOK_SECONDS = 0.5
"""Time between two looks of an agent at the records of its ranks."""
_SPREAD_SECONDS = 0.01
_WAIT_SECONDS = 1e9
"""The limit in the progress record of a rank that waits for its turn."""
_FAULTY_TURN = 2
_LATE_SECONDS = 5.0
_LAST_UNTIMED_TURN = 3
"""The number of the turn without a number in which ranks leave: the others warm up, and end measurements."""
_SSH_FAILED = 255

Fault = Literal["dies", "hangs", "is late", "stands still", "sends garbage", "sends another rank's result"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the hosts have, and what goes wrong on some of them."""

    folder: str
    """Folder into which each host writes its ``Seen`` when it ends."""
    ranks: int
    """Number of ranks on each host."""
    results: tuple[RankResult, RankResult]
    """Results of a real run, which those of rank 0 and of all other ranks are copies of."""
    start_seconds: float = 0.0
    """Time that an agent takes to start, as through ssh."""
    stall_seconds: float = 300.0
    """The limit in the progress records of ranks that train."""
    faults: dict[str, Fault] = {}
    """What goes wrong, by the names of hosts, in the second timed turn of launches or at their end."""
    first_faulty: int = 1
    """Number of the first launch in which it goes wrong."""


class Seen(msgspec.Struct, kw_only=True):
    """What a host saw, with times of the monotonic clock, which all processes of this machine share."""

    opened_at: float
    ready_at: float = 0.0
    sent: int = 0
    """Number of messages to the parent."""
    received: int = 0
    silent_seconds: float = 0.0
    """Longest time between two messages of the parent while a launch is alive, whose ranks might give up."""
    went: list[tuple[str, int, float]] = []
    """The launch, the number of the wait in it that ended, and the time."""
    waited: list[tuple[str, int, float]] = []
    """The launch, the number of the wait in it that began, and the time."""


def name_of(number: int) -> str:
    """Return the name of a host, an address, so that no name server is asked; numbers are from 0."""
    return f"10.1.{number // 250}.{number % 250 + 1}"


def _number_of(name: str) -> int:
    *_, high, low = name.split(".")
    return int(high) * 250 + int(low) - 1


class _CountingPipe(MessagePipe):
    def __init__(self, read: int, write: int) -> None:
        super().__init__(read, write)
        self.write_descriptor = write
        self.sent = 0

    def send(self, message):
        self.sent += 1
        super().send(message)


class _Host:
    """The agent of one host, with all launches in one process."""

    def __init__(self, name: str, plan: Plan, pipe: _CountingPipe, opened_at: float) -> None:
        self.name, self.plan, self.pipe = name, plan, pipe
        self.seen = Seen(opened_at=opened_at)
        self._launches: dict[str, _Launch] = {}
        self._due: list = []
        self._count = itertools.count()

    def after(self, seconds, do):
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._count), do))

    def serve(self):
        time.sleep(self.plan.start_seconds)
        self.pipe.send(self._describe())
        self.seen.ready_at = time.monotonic()
        while not self.pipe.closed:
            read_at = self.pipe.received_at
            for message in self.pipe.receive():
                is_over = all(launch.is_over for launch in self._launches.values())
                if not is_over or self.pipe.backlog_bytes:  # a launch is alive until all was sent
                    silent = self.pipe.received_at - read_at
                    self.seen.silent_seconds = max(self.seen.silent_seconds, silent)
                self.seen.received += 1
                self._handle(message)
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            self.pipe.keep_alive()
            until = self._due[0][0] - now if self._due else ALIVE_SECONDS
            wait_for([self.pipe], max(0.0, min(until, ALIVE_SECONDS)))

    def keep_record(self):
        self.seen.sent = self.pipe.sent
        Path(self.plan.folder, f"{self.name}.json").write_bytes(msgspec.json.encode(self.seen))

    def _describe(self):
        is_host = self.name != "localhost"
        return Ready(
            hostname=self.name,
            version=__version__,
            addresses={"lo": ["127.0.0.1/8"]} | ({"eth0": [f"{self.name}/16"]} if is_host else {}),
            cpus=list(range(self.plan.ranks)),
            memory_left_bytes=1 << 40,
        )

    def _handle(self, message):
        match message:
            case FindPort():
                self.pipe.send(Port(29_500))
            case OfLaunch(name, Start() as order):
                self._launches[name] = _Launch(self, name, order)
            case OfLaunch(name, order) if name in self._launches:
                self._launches[name].handle(order)
            case Alive() | OfLaunch():
                pass
            case _:
                raise AssertionError(f"An agent gets no such message: {message}")


class _Launch:
    """One launch on one host: its ranks wait, take turns, and leave with a result."""

    def __init__(self, host: _Host, name: str, order: Start) -> None:
        self._host, self._name = host, name
        self._files = LaunchFiles(Path())
        job = msgspec.json.decode(order.files[self._files.job.name])
        self._fault = host.plan.faults.get(host.name) if job["number"] >= host.plan.first_faulty else None
        first = _number_of(host.name) * order.ranks
        self._ranks = range(first, first + order.ranks)
        self._waits, self._steps, self._untimed_turns = 0, 0, 0
        self._stage: Stage = "join"
        self.is_over = False
        self._send(Started())
        self._tell_progress()
        host.after(_PREPARE_SECONDS, self._arrive)

    def handle(self, order):
        match order:
            case Go(turn):
                self._host.seen.went.append((self._name, self._waits, time.monotonic()))
                self._waits += 1
                self._go(turn)
            case End():
                self._send(Exited(status=None))
                self.is_over = True

    def _go(self, turn: Turn):
        steps = turn.untimed_steps + turn.timed_steps
        self._stage, self._steps = "train", self._steps + steps
        self._untimed_turns += not turn.number
        self._host.after(_LOOK_SECONDS, self._tell_again)
        if self._untimed_turns == _LAST_UNTIMED_TURN:
            self._host.after(_UNTIMED_SECONDS, self._leave)
            return
        # Ranks of different hosts do not end a turn in the same moment.
        seconds = (steps * STEP_SECONDS or _UNTIMED_SECONDS) + random.uniform(0, _SPREAD_SECONDS)
        if self._fault and turn.number == _FAULTY_TURN:
            Path(self._host.plan.folder, "fault").write_text(repr(time.monotonic()))
            if self._fault == "stands still":
                self._tell_progress()
                self._stage = "turn"  # no record follows, and no arrival
                return
            seconds += _LATE_SECONDS if self._fault == "is late" else 0
            if misbehave := _MISBEHAVE.get(self._fault):
                misbehave(self._host)
        self._host.after(seconds, self._arrive)

    def _arrive(self):
        memory = Memory(peak_bytes=300 << 20)
        arrivals = [Arrival(rank=r, pid=1, step_seconds=STEP_SECONDS, memory=memory) for r in self._ranks]
        self._host.seen.waited.append((self._name, self._waits, time.monotonic()))
        self._send(Waiting(arrivals, 1 << 40))
        self._stage = "turn"
        self._tell_progress()

    def _leave(self):
        self._stage = "turn"
        if is_liar := self._fault == "sends another rank's result":
            Path(self._host.plan.folder, "fault").write_text(repr(time.monotonic()))
        for local_rank, rank in enumerate(self._ranks):
            like = measured_by(rank, self._host.plan.results[rank > 0])
            named = {"rank": rank + is_liar, "local_rank": local_rank, "host": self._host.name}
            result = msgspec.structs.replace(like, pid=1000 + rank, **named)
            self._send(FileData(self._files.result(rank).name, msgspec.json.encode(result)))
        for rank in self._ranks:
            record = RankExit(pid=1000 + rank, time=time.time(), status=0, signal=None)
            self._send(FileData(self._files.exit(rank).name, msgspec.json.encode(record)))
        self._send(RankNews(done=list(self._ranks)))
        self._send(Exited(status=0))
        self.is_over = True

    def _tell_again(self):
        """Tell the progress as long as the ranks train, as often as an agent looks at it."""
        if self._stage == "train" and not self.is_over:
            self._tell_progress()
            self._host.after(_LOOK_SECONDS, self._tell_again)

    def _tell_progress(self):
        limit = _WAIT_SECONDS if self._stage == "turn" else self._host.plan.stall_seconds
        record = Progress(stage=self._stage, step=self._steps, at=time.time(), limit_seconds=limit)
        self._send(RankNews(progress=dict.fromkeys(self._ranks, record)))

    def _send(self, message):
        if not self.is_over:
            self._host.pipe.send(OfLaunch(self._name, message))


def measured_by(rank: int, like: RankResult) -> RankResult:
    """Return a result as that of one of many ranks, whose measurements are never equal."""

    def other(numbers: list[int]) -> list[int]:
        return [number + rank for number in numbers]

    replace = msgspec.structs.replace
    batch = like.attestation.get("batch", {})
    shard = [rank, *batch.get("shard", [])[1:]]
    return replace(
        like,
        blocks=[
            replace(
                block,
                wall_ns=block.wall_ns + rank,
                cpu_ns=block.cpu_ns + rank,
                phases={name: other(each) for name, each in block.phases.items()},
            )
            for block in like.blocks
        ],
        collective_ns=other(like.collective_ns),
        sweep=[replace(each, ns=other(each.ns)) for each in like.sweep],
        gradients=[replace(each, ready_ns=other(each.ready_ns)) for each in like.gradients],
        parity=[replace(each, seconds=each.seconds + rank / 1e6) for each in like.parity],
        attestation=like.attestation
        | {"batch": batch | {"shard": shard}, "peak_address_bytes": 2**30 + rank},
    )


def _die(host: _Host) -> NoReturn:
    os.write(2, b"Connection closed by remote host\n")
    os._exit(_SSH_FAILED)


def _hang(host: _Host):
    """Answer nothing more, until the parent gives this host up."""
    while not host.pipe.closed:
        time.sleep(ALIVE_SECONDS)
        for _ in host.pipe.receive():
            pass


def _send_garbage(host: _Host):
    os.write(host.pipe.write_descriptor, b"\xff" * 64)


_MISBEHAVE = {"dies": _die, "hangs": _hang, "sends garbage": _send_garbage}


# ---- the process that hosts are forked from ----


def main(path: str, plan: Plan) -> None:
    """Fork a process for each host that connects, until standard input ends; then wait for all of them."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no child stays a zombie
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1024)
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in readable:
                break
            connection, _ = listener.accept()
            with connection:
                words, streams, *_ = socket.recv_fds(connection, 1024, 3)
                if not os.fork():
                    listener.close()
                    _serve(words.decode(), plan, streams, connection)
                for stream in streams:
                    os.close(stream)
    with suppress(ChildProcessError):  # it waits for all of them, because none is reaped
        os.wait()


def _serve(name: str, plan: Plan, streams: list[int], connection: socket.socket) -> NoReturn:
    status = 1
    try:
        opened_at = time.monotonic()
        os.dup2(streams[2], 2)
        host = _Host(name, plan, _CountingPipe(*streams[:2]), opened_at)
        host.serve()
        host.keep_record()
        status = 0
    finally:
        with suppress(OSError):  # what started this agent was killed
            connection.send(bytes([status]))
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Plan))
