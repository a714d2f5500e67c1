"""Carry out the contract suite's launches, each only once."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from backends.launchers import LAUNCHERS, find_launcher
from backends.launchers.request import Request
from compare.errors import RingsideError
from compare.launch.processes import supervise
from compare.schema.arms import parse_arm
from compare.schema.environment import launch_settings
from compare.schema.hosts import Host
from tests.contract.plan import LAUNCHES, Launch
from tests.contract.records import GroupRecord, RankRecord, ReplicaRecord
from tests.waiting import free_port

DEADLINE_SECONDS = 100.0
LOOPBACK = "lo"


class Outcome:
    """The records of a launch; a missing one fails the test."""

    def __init__(self, directory: Path, world: int, status: int | str) -> None:
        self.directory = directory
        self.status = status
        files = [directory / f"rank-{rank}.json" for rank in range(world)]
        self.ranks = [
            msgspec.json.decode(file.read_bytes(), type=RankRecord) if file.exists() else RankRecord()
            for file in files
        ]

    def groups(self, name: str) -> list[GroupRecord]:
        """Return every rank's record of a group, in the order of ranks."""
        return self._found(name, [[r for r in rank.groups if r.name == name] for rank in self.ranks])

    def replicas(self, name: str) -> list[ReplicaRecord]:
        """Return every rank's record of a replica, in the order of ranks."""
        return self._found(name, [[r for r in rank.replicas if r.name == name] for rank in self.ranks])

    def _found(self, name: str, records: list[list]) -> list:
        if not all(len(found) == 1 for found in records):
            pytest.fail(f"not every rank has a record of {name}\n{self.logs()}", pytrace=False)
        return [found[0] for found in records]

    def logs(self) -> str:
        """Return the ranks' failures and the launcher's log."""
        failures = [
            f"rank {rank}: {record.failure}" for rank, record in enumerate(self.ranks) if record.failure
        ]
        log = (self.directory / "launcher.log").read_text(errors="replace")[-4000:]
        return "\n".join([f"the launch ended with: {self.status}", *failures, log])


@pytest.fixture(scope="session")
def short_folder():
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@pytest.fixture(scope="session")
def carry_out(tmp_path_factory, requires_backend, launch_marks, short_folder):
    """Start a launch through its real launcher and wait for its end."""

    def run(launch: Launch, world: int) -> Outcome:
        launch = launch.among(world)
        for meeting in launch.meetings:
            arm = parse_arm(meeting.arm)
            requires_backend(arm.backend, **arm.options)
        directory = tmp_path_factory.mktemp(launch.launcher)
        job = directory / "job.json"
        job.write_bytes(msgspec.json.encode(launch))
        request = Request(
            executable=find_launcher(launch.launcher),
            python=Path(sys.executable),
            hosts=(Host("localhost", launch.processes),),
            module="tests.contract.worker",
            arguments=(str(job),),
            port=free_port(),
            # torchrun leaves a folder here, and Open MPI needs a short path for its socket.
            environment=launch_settings(
                threads=1, interface=LOOPBACK, executables=Path(sys.executable).parent
            )
            | {"TMPDIR": short_folder},
            interface=LOOPBACK,
            options=launch.options,
        )
        mark = f"contract-{os.getpid()}-{directory.name}"
        launch_marks.append(mark)
        try:
            (command,) = LAUNCHERS[launch.launcher].commands(request)
            deadline = time.monotonic() + DEADLINE_SECONDS
            ended = supervise(
                command,
                name=mark,
                log=directory / "launcher.log",
                on_tick=lambda: time.monotonic() < deadline,
            )
        except RingsideError as error:
            return Outcome(directory, launch.processes, str(error))
        status = f"not ended after {DEADLINE_SECONDS:.0f} s" if ended is None else ended
        return Outcome(directory, launch.processes, status)

    return run


@pytest.fixture(scope="session")
def launched(carry_out):
    """Return the outcome of a launch at a world size."""
    outcomes: dict[tuple[str, int], Outcome] = {}

    def outcome(name: str, world: int) -> Outcome:
        if (name, world) not in outcomes:
            outcomes[name, world] = carry_out(LAUNCHES[name], world)
        return outcomes[name, world]

    return outcome


@pytest.fixture(autouse=True)
def _nothing_left_running(nothing_left_running):
    """Check every test of this folder: any of them may start launches."""
