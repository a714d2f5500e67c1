"""Test the lab: separate hosts, real links, and no traces."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.lab import hosts
from tests.lab.hosts import REPOSITORY, traces
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

RECEIVE = """
import socket, sys, time
with socket.create_server(("", 5001)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    connection.settimeout(20)
    got, began = 0, None
    while piece := connection.recv(1 << 16):
        got, began = got + len(piece), began or time.perf_counter()
    print(got / (time.perf_counter() - began), flush=True)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5001), timeout=20) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


def test_lab_hosts_have_own_names_and_accept_ssh_without_a_prompt(lab):
    for machine in (lab.login, *lab.hosts):
        for other in lab.hosts:
            done = machine.run(["ssh", "-o", "BatchMode=yes", other.name, "hostname"])
            assert (done.returncode, done.stdout) == (0, f"{other.name}\n"), done.stderr


def test_lab_login_refuses_ssh(lab):
    assert lab.login.run(["hostname"]).stdout == "login\n"
    done = lab.hosts[0].run(["ssh", "-o", "BatchMode=yes", "login", "hostname"])
    assert done.returncode == 255
    assert "Connection refused" in done.stderr


def test_lab_host_shares_no_tmp_no_shared_memory_no_processes(lab):
    one, two = lab.hosts
    for folder in ("/tmp", "/dev/shm", "/run"):  # noqa: S108 -- each host has its own
        assert one.run(["touch", f"{folder}/only-here"]).returncode == 0
        assert one.run(["test", "-e", f"{folder}/only-here"]).returncode == 0
        assert two.run(["test", "-e", f"{folder}/only-here"]).returncode == 1
        assert not os.path.exists(f"{folder}/only-here")  # noqa: PTH110 -- beside the other three
    assert str(os.getpid()) not in one.run(["ls", "/proc"]).stdout.split()


def test_lab_neither_changes_nor_sees_the_machines_names_and_keys(lab):
    with open("/etc/hosts") as file:  # noqa: PTH123 -- a file of the system
        assert "10.77.0." not in file.read()
    assert lab.hosts[0].run(["getent", "hosts", "n2"]).stdout.split() == ["10.77.0.12", "n2"]
    assert lab.hosts[0].run(["getent", "hosts", "example.org"]).returncode == 2
    assert lab.hosts[0].run(["cat", "/etc/ssh/ssh_host_ed25519_key"]).returncode == 1


def test_lab_hosts_run_the_checkout(lab):
    done = lab.login.run(["ssh", "n1", f"cd {REPOSITORY} && {sys.executable} -m compare --version"])
    assert done.returncode == 0, done.stderr
    done = lab.login.run(["ssh", "n2", f"cd {REPOSITORY} && {sys.executable} -m compare.worker"])
    assert "main() missing" in done.stderr, "the module was found and its arguments are missing"


def transferred(sender, receiver, size):
    """Send bytes from host to host; return the receiver's bytes per second."""
    server = receiver.start(
        [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert server.stdout.readline() == "ready\n"
        done = sender.run([sys.executable, "-c", SEND, receiver.address, size])
        assert done.returncode == 0, done.stderr
        return float(server.communicate(timeout=30)[0])
    finally:
        server.kill()
        server.wait()


@pytest.mark.timed
def test_lab_rate_limit_holds_in_both_directions(make_lab):
    if reason := hosts.why_no_rate_limit():
        pytest.skip(reason)
    lab = make_lab(2)
    one, two = lab.hosts
    one.limit_rate("80mbit")
    for sender, receiver in ((one, two), (two, one)):
        rate = transferred(sender, receiver, 8_000_000)
        assert 8_000_000 < rate < 10_500_000
    one.limit_rate("1gbit")
    assert transferred(one, two, 8_000_000) > 20_000_000


def test_lab_host_down_has_no_route_and_a_silent_one_times_out(lab):
    ssh = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
    down = lab.login.start([*ssh, "down", "true"], stderr=subprocess.PIPE)
    silent = lab.login.start([*ssh, "silent", "true"], stderr=subprocess.PIPE)
    assert "No route to host" in down.communicate(timeout=20)[1]
    assert "timed out" in silent.communicate(timeout=20)[1]


def answers(lab, name, *, within=2):
    ssh = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={within}", name, "true"]
    return lab.login.run(ssh).returncode == 0


@pytest.mark.parametrize(
    ("fault", "repair", "carrier"), [("link_down", "link_up", False), ("drop_packets", "pass_packets", True)]
)
def test_lab_links_are_cut_and_repaired(make_lab, fault, repair, carrier):
    lab = make_lab(1)
    (host,) = lab.hosts
    getattr(host, fault)()
    assert ("NO-CARRIER" not in host.run(["ip", "link", "show", "eth0"]).stdout) is carrier
    done = lab.login.run(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", "n1", "true"])
    assert done.returncode
    assert "timed out" in done.stderr or not carrier
    getattr(host, repair)()
    assert answers(lab, "n1", within=5)


def test_lab_host_stopped_ends_its_processes(make_lab):
    lab = make_lab(2)
    victim, survivor = lab.hosts
    sleeper = victim.start(["setsid", "sleep", "321"])
    wait_until(lambda: "sleep 321" in victim.command_lines())
    pids = [p.pid for p in victim.processes()]
    victim.stop()
    sleeper.wait(timeout=5)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not answers(lab, "n1")
    assert answers(lab, "n2")
    assert lab.running() == [lab.login, survivor]


def test_lab_closed_leaves_nothing(requires_lab):
    before = traces()
    began = time.monotonic()
    with hosts.Lab(4) as lab:
        up_seconds = time.monotonic() - began
        lab.hosts[0].start(["setsid", "sleep", "321"], stdin=subprocess.DEVNULL)
        during = traces(lab.folder)
        assert len(during.processes) > 10
        assert len(during.namespaces) == 6, "a switch, a login and four hosts"
        assert during.folders == [str(lab.folder)]
        assert during.interfaces == before.interfaces
        assert during.mounts == before.mounts
    assert up_seconds < 10, "about a quarter of a second where nothing else runs"
    after = traces(lab.folder)
    assert after.processes == []
    assert after.folders == []
    assert after.interfaces == before.interfaces
    assert after.mounts == before.mounts
    assert not during.namespaces & hosts.network_namespaces(psutil.pids())


def test_lab_of_a_killed_process_is_swept_away(requires_lab, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # no neighbour sweeps there
    code = (
        "import os, time; from tests.lab.hosts import Lab; lab = Lab(2).__enter__();"
        "lab.hosts[0].start(['setsid', 'sleep', '321']);"
        "print(lab.folder, flush=True); time.sleep(60)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    keeper = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True
    )
    folder = hosts.Path(keeper.stdout.readline().strip())
    try:
        assert traces(folder).processes
        hosts.sweep()
        assert traces(folder).processes, "a living lab is left alone"
    finally:
        os.kill(keeper.pid, signal.SIGKILL)
        keeper.communicate()
    wait_until(lambda: traces(folder).processes == [])
    assert traces(folder).folders == [str(folder)]
    hosts.sweep()
    assert traces(folder).folders == []


def test_lab_that_does_not_start_gives_the_reason_and_leaves_nothing(requires_lab, monkeypatch):
    monkeypatch.setattr(hosts, "_SSHD_CONFIG", "NoSuchSetting yes\n")
    lab = hosts.Lab(2)
    with pytest.raises(hosts.LabError, match="NoSuchSetting"), lab:
        pass
    assert traces(lab.folder)[:2] == ([], traces().mounts)
    assert traces(lab.folder).folders == []


def test_lab_missing_program_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(hosts, "packages", lambda: {"no-such-program": "some-package"})
    hosts.why_not.cache_clear()
    with contextlib.ExitStack() as after:
        after.callback(hosts.why_not.cache_clear)
        assert "no-such-program is missing (apt-get install some-package)" in hosts.why_not()
