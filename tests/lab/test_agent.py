"""Test launches on real hosts over ssh, without a shared file system."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from compare.schema.job import read_progress
from compare.schema.launch_files import LEASE_SECONDS, LaunchFiles
from tests.lab.hosts import REPOSITORY
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

# In the private /tmp of every host.
MARK = "/tmp/one-launch"  # noqa: S108
NOTICED_SECONDS = 15.0
ENDED_SECONDS = LEASE_SECONDS + 6


class Started:
    """The parent of a launch, at the login."""

    def __init__(self, lab, *rank, hosts="n1\nn2", **more):
        self.lab = lab
        self.files = LaunchFiles(lab.folder / "mirrored")
        asked = {"hosts": hosts, "mark": MARK, "rank": rank, "mirrored": "/run/lab/mirrored"} | more
        self.process = lab.login.start(
            [sys.executable, "-m", "tests.lab.parent", json.dumps(asked)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )

    def wait_for_progress(self, ranks=2):
        wait_until(lambda: all(read_progress(self.files, rank) for rank in range(ranks)), 30)

    def report(self):
        """Wait for its end and return what it reported."""
        lines = [json.loads(line) for line in self.process.communicate(timeout=60)[0].splitlines()]
        return {key: value for line in lines for key, value in line.items()}

    def left(self, *machines):
        """List what the launch left on hosts."""
        processes = [line for m in machines or self.lab.hosts for line in m.command_lines()]
        folders = [
            m.name
            for m in machines or self.lab.hosts
            if m.run(["ls", "/tmp"]).stdout.count("one-launch")  # noqa: S108
        ]
        return processes + folders


def test_launch_on_two_hosts_returns_all_files(make_lab):
    lab = make_lab(2)
    launch = Started(lab, "1.0")
    report = launch.report()
    assert "error" not in report, report
    for rank, name in enumerate(("n1", "n2")):
        result = json.loads(launch.files.result(rank).read_text())
        assert result["host"] == name
        assert result["secret"] == "hunter2"  # noqa: S105 -- it is none
        assert launch.files.log(rank).read_text().splitlines() == [f"step {n}" for n in range(10)]
        assert (launch.files.directory / f"launcher-{name}.log").read_text() == "all is done\n"
    wait_until(lambda: launch.left() == [], 5)


def test_launch_shows_no_secret_in_arguments_on_any_host(make_lab):
    lab = make_lab(2)
    launch = Started(lab, "60")
    launch.wait_for_progress()
    machines = [lab.login, *lab.hosts]
    shown = [line for machine in machines for line in machine.command_lines()]
    assert sum("rank.py" in line for line in shown) >= 2
    assert not [line for line in shown if "hunter2" in line]


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["link_down", "drop_packets"])
def test_launch_behind_a_dead_link_ends_by_itself(make_lab, fault):
    lab = make_lab(2)
    cut, other = lab.hosts
    launch = Started(lab, "60")
    launch.wait_for_progress()
    getattr(cut, fault)()
    began = time.time()
    wait_until(lambda: launch.left(cut) == [], ENDED_SECONDS)
    report = launch.report()
    assert report["at"] - began < NOTICED_SECONDS
    assert "Host n1 (hosts.txt:1) cannot be reached" in report["error"]
    wait_until(lambda: launch.left(other) == [], 5)


@pytest.mark.faults
def test_launch_on_a_host_switched_off_names_it(make_lab):
    lab = make_lab(2)
    launch = Started(lab, "60")
    launch.wait_for_progress()
    lab.hosts[1].stop()
    began = time.time()
    report = launch.report()
    assert report["at"] - began < NOTICED_SECONDS
    assert "Host n2 (hosts.txt:2)" in report["error"]
    wait_until(lambda: launch.left(lab.hosts[0]) == [], 5)


@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_launch_of_a_killed_or_stopped_parent_ends(make_lab, how):
    lab = make_lab(2)
    launch = Started(lab, "60")
    launch.wait_for_progress()
    parents = [p for p in lab.login.processes() if "tests.lab.parent" in p.cmdline()]
    for parent in parents:
        os.kill(parent.pid, how)
    wait_until(lambda: launch.left() == [], ENDED_SECONDS)


@pytest.mark.faults
def test_launch_with_a_killed_agent_names_its_host(make_lab):
    lab = make_lab(2)
    launch = Started(lab, "60")
    launch.wait_for_progress()
    agents = [p for p in lab.hosts[1].processes() if "compare.launch.agent" in p.cmdline() and is_python(p)]
    assert len(agents) == 1
    agents[0].kill()
    began = time.time()
    report = launch.report()
    assert report["at"] - began < NOTICED_SECONDS
    assert "Host n2 (hosts.txt:2)" in report["error"]


def is_python(process):
    with psutil.Process(process.pid).oneshot():
        return "python" in process.name()


def test_launch_ignores_the_output_of_a_login_shell(make_lab):
    lab = make_lab(1)
    # The output of a host's start-up files arrives on the pipe of the first message.
    (lab.folder / "etc-ssh" / "sshrc").write_text("echo Welcome to $HOSTNAME\n")
    launch = Started(lab, "0.1", hosts="n1")
    report = launch.report()
    assert "error" not in report, report
    assert launch.files.result(0).exists()


def test_launch_with_a_wrong_interpreter_names_the_host(make_lab):
    lab = make_lab(1)
    report = Started(lab, "1", hosts="n1", python="/no/such/python").report()
    assert "Host n1 (hosts.txt:1) cannot execute the command" in report["error"]
