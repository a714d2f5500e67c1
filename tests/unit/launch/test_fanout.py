"""Many processes at once: time-outs, limits on output, and interrupts."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest

from compare.launch.engines import STREAM_BYTES, Carrier
from compare.launch.engines.commands import OPENED_AT_ONCE, host_error, run_everywhere
from compare.launch.engines.ssh import Ssh
from compare.launch.network import addresses_of
from compare.schema.hostfile import parse_hostfile
from compare.schema.hosts import Host
from tests.waiting import is_alive, wait_until

HERE = Host(name="localhost", slots=1)


def test_fanout_with_a_silent_host_keeps_the_other_answers(fake_ssh):
    fake_ssh('case "$*" in *slow*) exec sleep 30;; *) echo fine;; esac')
    began = time.monotonic()
    hosts = [Host(name=name, slots=1) for name in ("quick", "slow", "other")]
    answers = run_everywhere(hosts, ["true"], carrier=Ssh(), timeout_seconds=1)
    assert time.monotonic() - began < 10
    assert [answer.status for answer in answers] == [0, None, 0]
    assert [answer.host for answer in answers] == hosts
    assert host_error(answers[1], Ssh()).what == "Host slow did not answer within 1 s."


def test_fanout_over_150_hosts_opens_64_at_a_time(fake_ssh, tmp_path):
    log, last = tmp_path / "log", tmp_path / "last"
    fake_ssh(
        f"echo + >>{log}; until [ $(grep -c + {log}) -ge 64 ]; do sleep 0.2; done; "
        f'case "$*" in *n77*) until [ -e {last} ]; do sleep 0.2; done;; *n150*) touch {last};; esac; '
        f"echo - >>{log}"
    )
    hosts = parse_hostfile("n[1-150]\n", "hosts.txt")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    answers = run_everywhere(hosts, ["true"], carrier=Ssh(), timeout_seconds=60)
    assert [answer.host for answer in answers] == list(hosts)
    assert {answer.status for answer in answers} == {0}
    changes = log.read_text().split()
    opened = [changes[:end].count("+") - changes[:end].count("-") for end in range(len(changes) + 1)]
    assert max(opened) == OPENED_AT_ONCE == 64
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from compare.launch.engines.commands import run_everywhere
from compare.launch.engines.ssh import Ssh
from compare.schema.hosts import Host
hosts = [Host(name=f"n{number}", slots=1) for number in range(30)]
answers = run_everywhere(hosts, ["true"], carrier=Ssh(), timeout_seconds=60, stdin=b"x")
print([answer.stdout for answer in answers] == [b"x"] * 30)
"""


def test_fanout_with_few_open_files_runs_in_batches(fake_ssh):
    fake_ssh("exec cat")
    child = subprocess.run(
        [sys.executable, "-c", FEW_FILES], capture_output=True, text=True, check=False, timeout=120
    )
    assert child.stdout == "True\n", child.stderr


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="From 3.12 on asyncio itself looks for pidfd, once.")
def test_fanout_without_pidfd_runs_all_the_same(fake_ssh, monkeypatch):
    def refuse(_pid):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    fake_ssh("exec cat")
    (answer,) = run_everywhere([Host("n1", 1)], ["true"], carrier=Ssh(), timeout_seconds=20, stdin=b"x")
    assert (answer.status, answer.stdout) == (0, b"x")


@pytest.mark.parametrize(("stream", "name"), [("1", "stdout"), ("2", "stderr")])
def test_fanout_ends_a_host_that_floods_and_names_it(fake_ssh, stream, name):
    fake_ssh(f'case "$*" in *loud*) yes flood >&{stream};; *) echo fine;; esac')
    hosts = [Host(name=name, slots=1) for name in ("loud", "calm")]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loud, calm = run_everywhere(hosts, ["true"], carrier=Ssh(), timeout_seconds=60)
    assert (loud.status, loud.flooded, len(getattr(loud, name))) == (None, name, STREAM_BYTES)
    assert loud.seconds < 30
    assert (calm.status, calm.stdout) == (0, b"fine\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert host_error(loud, Ssh()).what == f"Host loud sent more than 1 MiB on {name}."


def test_fanout_copies_no_large_input_per_host():
    argv = ["sh", "-c", "sleep 1; wc -c"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = run_everywhere([HERE] * 20, argv, carrier=Carrier(), timeout_seconds=60, stdin=bytes(16 << 20))
    assert {int(answer.stdout) for answer in answers} == {16 << 20}
    # In KiB; 20 copies are 320 MiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_fanout_does_not_wait_for_a_background_process():
    """A shared ssh connection stays in the background with the pipes open."""
    argv = ["sh", "-c", "sleep 20 & echo $!"]
    (answer,) = run_everywhere([HERE], argv, carrier=Carrier(), timeout_seconds=15)
    os.kill(int(answer.stdout), signal.SIGKILL)
    assert answer.status == 0
    assert answer.seconds < 10


def test_fanout_time_out_ends_the_children_too(tmp_path):
    argv = ["sh", "-c", f"sleep 60 & echo $! >{tmp_path}/child; wait"]
    (answer,) = run_everywhere([HERE], argv, carrier=Carrier(), timeout_seconds=1)
    assert answer.status is None
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_alive(child), 5)


PROGRAM = """
import signal, socket, sys, time
from compare.launch.cluster import open_cluster
from compare.launch.engines import Allocation
from compare.launch.engines.commands import run_everywhere
from compare.launch.engines.ssh import Ssh
from compare.launch.network import addresses_of
from compare.launch.signals import INTERRUPTED, end_in_good_order
from compare.schema.hostfile import parse_hosts
signal.signal(signal.SIGINT, signal.default_int_handler)
end_in_good_order()
try:
    print("begins", flush=True)
    {work}
except KeyboardInterrupt:
    sys.exit(INTERRUPTED)
"""
REACH = 'run_everywhere(parse_hosts(sys.argv[1]), ["true"], carrier=Ssh(), timeout_seconds=600)'
ALLOCATED = "Allocation(parse_hosts(sys.argv[1]), Ssh())"
CONNECT = f"with open_cluster({ALLOCATED}, interface=None, exported={{}}): pass"
LOOK_UP = "socket.gethostbyname = lambda _: time.sleep(600); addresses_of(sys.argv[1].split(','), 60)"


def running(mark):
    """Count the processes that a fake ssh has become."""
    found = psutil.process_iter(["cmdline", "status"])
    alive = [each.info for each in found if each.info["status"] != psutil.STATUS_ZOMBIE]
    return sum(mark in (info["cmdline"] or ()) for info in alive)


def interrupt(work, hosts, number, ready=lambda: True):
    """Interrupt a program when it is ready, and require that it exits in order within a second."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work), hosts],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "begins\n"
        deadline = time.monotonic() + 60
        while not ready():
            assert child.poll() is None, child.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        began = time.monotonic()
        child.send_signal(number)
        _, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (child.returncode, errors) == (130, "")
    assert time.monotonic() - began < 1


@pytest.mark.timed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("work", [REACH, CONNECT], ids=["reach", "connect"])
@pytest.mark.parametrize("hosts", [1, 3000])
def test_fanout_interrupt_ends_hosts_that_hang_within_a_second(fake_ssh, work, hosts, number):
    mark = f"98765{os.getpid()}.{number:d}"
    fake_ssh(f"exec sleep {mark}")
    enough = min(hosts, 60)  # of 3000 the others are still being started, or wait for their turn
    interrupt(work, f"n[1-{hosts}]", number, lambda: running(mark) >= enough)
    assert running(mark) == 0


@pytest.mark.timed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_lookup_interrupt_does_not_wait_for_the_name_server(number):
    interrupt(LOOK_UP, "n1," * 3000, number)


def test_lookup_gives_up_a_name_server_that_hangs(monkeypatch):
    monkeypatch.setattr(
        "socket.gethostbyname", lambda name: time.sleep(5) if name == "slow" else f"10.0.0.{name[1:]}"
    )
    assert addresses_of(["n1", "slow", "n2"], 0.5) == ["10.0.0.1", "", "10.0.0.2"]


def test_lookup_of_an_unknown_name_is_empty():
    assert addresses_of(["localhost", "no-such-host.invalid", "x" * 300]) == ["127.0.0.1", "", ""]
