"""Test that failures on hosts are named in time and cleaned up.

`make test-hosts` runs all of it. Continuous integration runs those that are not marked ``faults``. These
are one launcher of each failure, and at least one failure of each launcher.
"""

import json
import os
import shutil
import signal
import time

import pytest

from compare.schema.launch_files import LEASE_SECONDS
from compare.schema.store import read_run
from tests.lab.comparing import arguments, compare, left, start
from tests.lab.failure_table import Failure
from tests.lab.hosts import REPOSITORY

pytestmark = pytest.mark.lab

STALL_SECONDS = 12.0
BOUND_SECONDS = 30.0
UNREACHABLE_BOUND_SECONDS = 15.0
DEATH_BOUND_SECONDS = 10.0
# Behind a dead link a rank ends itself, when its lease has run out.
GONE_SECONDS = STALL_SECONDS + LEASE_SECONDS
LAUNCHERS = {
    "torchrun": "ddp",
    "horovodrun-gloo": "horovod",
    "horovodrun-mpi": "horovod:controller=mpi",
    "mpirun": "mpi",
}
BY_DAEMON = ("horovodrun-mpi", "mpirun")
"""Launchers that start the ranks of a host by a daemon there."""
IN_A_RANK = {
    "raise": ["rank 1 on n2 failed", "RuntimeError: injected by the test", "sitecustomize.py:"],
    "kill": ["rank 1 on n2 died", "killed by SIGKILL (kill -9, or out of memory)"],
    "hang": ["rank 1 on n2 made no progress for 12 s", "sitecustomize.py:"],
}
ON_A_HOST = ("link_down", "drop_packets", "stop")
BEFORE_A_RUN = ("down", "silent", "no-such-host")
QUICK = {
    *(("torchrun", kind) for kind in ("kill", *BEFORE_A_RUN, "slots", "interpreter")),
    ("horovodrun-gloo", "raise"),
    ("horovodrun-mpi", "kill"),
    ("mpirun", "hang"),
    ("torchrun", "link_down"),
    ("horovodrun-gloo", "parent"),
    ("mpirun", "ctrl-c"),
}
FAILURES = {
    "raise": Failure("a rank raises", 6, "rank, host, error, file:line", BOUND_SECONDS),
    "kill": Failure("a rank is killed", 6, "rank, host", BOUND_SECONDS),
    "hang": Failure("a rank hangs (`--stall 12`)", 7, "rank, host, file:line", BOUND_SECONDS),
    "link_down": Failure("a host's link goes down", 9, "host", BOUND_SECONDS),
    "drop_packets": Failure("a host's packets are dropped", 9, "host", BOUND_SECONDS),
    "stop": Failure("a host goes down", 9, "host", BOUND_SECONDS),
    "down": Failure("a host is down from the start", 9, "host, line of the file", UNREACHABLE_BOUND_SECONDS),
    "silent": Failure("a host never answers", 9, "host, line of the file", UNREACHABLE_BOUND_SECONDS),
    "no-such-host": Failure(
        "a name that is no host's", 9, "host, line of the file", UNREACHABLE_BOUND_SECONDS
    ),
    "interpreter": Failure(
        "another interpreter on one host", 9, "host, line of the file", UNREACHABLE_BOUND_SECONDS
    ),
    "slots": Failure("more ranks than slots", 2, "ranks and slots", UNREACHABLE_BOUND_SECONDS),
    "port": Failure(
        "a port is taken meanwhile (time of the whole run)", 0, "that it was started again", 60.0
    ),
    "ctrl-c": Failure("Ctrl-C", 130, "what was finished", BOUND_SECONDS),
    "parent": Failure("`compare` is killed (-9)", "–", "–", BOUND_SECONDS),
}
"""Every row of the README's table, in its order."""


def cases(kinds):
    return [
        pytest.param(
            launcher,
            kind,
            marks=[] if (launcher, kind) in QUICK else [pytest.mark.faults],
            id=f"{launcher}-{kind}",
        )
        for kind in kinds
        for launcher in LAUNCHERS
    ]


class Run:
    """A run that was started at the login.

    It has a rank on n1 and on n2, or those that ``hosts`` names.
    """

    def __init__(self, lab, mnist_dir, arm, *more, fault=None, **options):
        self.lab = lab
        self.site = lab.folder / "site"
        shutil.copytree(REPOSITORY / "tests" / "faults" / "injected", self.site)
        if fault:
            (self.site / "fault.json").write_text(json.dumps(fault))
        self.process = start(
            lab,
            options.get("hosts", "n1,n2"),
            mnist_dir,
            *("--backend", arm, "--stall", STALL_SECONDS, *more),
            steps=options.get("steps", 28_000),
            environment={"PYTHONPATH": "/run/lab/site"},
        )

    def wait_for_training(self, launch=1):
        until(lambda: self._is_training(launch) or self.process.poll() is not None, 150)
        assert self.process.poll() is None, self.process.communicate()

    def output(self):
        """Wait for its end, and return what it printed, on one line."""
        output = " ".join(self.process.communicate(timeout=150)[1].split())
        assert "Traceback" not in output
        return output

    def _is_training(self, launch):
        files = list((self.lab.folder / "run").glob(f"launches/{launch:02d}-*/rank-*.progress"))
        return len(files) == 2 and all('"train"' in file.read_text() for file in files)


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.1)


def gone_from(lab, machines, seconds):
    until(lambda: left(lab, machines) == [], seconds)


@pytest.mark.parametrize(("launcher", "kind"), cases(IN_A_RANK))
def test_a_rank_that_fails_is_named_with_its_host(make_lab, mnist_dir, every_backend, record, launcher, kind):
    fault = {"module": "compare.worker.rank", "kind": kind, "rank": 1, "step": 100}
    run = Run(make_lab(2), mnist_dir, LAUNCHERS[launcher], fault=fault)
    output = run.output()
    took = time.time() - float((run.site / "injected_at").read_text())
    assert run.process.returncode == FAILURES[kind].code, output
    for words in IN_A_RANK[kind]:
        assert words in output
    assert took < BOUND_SECONDS
    assert not read_run(run.lab.folder / "run").complete
    assert left(run.lab) == []
    record(FAILURES[kind], launcher, took)


@pytest.mark.parametrize(
    "launcher", ["torchrun", *(pytest.param(name, marks=pytest.mark.faults) for name in BY_DAEMON)]
)
def test_a_rank_that_is_gone_without_a_word_is_named_with_its_host(
    make_lab, mnist_dir, every_backend, launcher
):
    """Its launcher takes a status of 0 for success."""
    fault = {"module": "compare.worker.watchdog", "kind": "exit 0 before the first record", "rank": 1}
    run = Run(make_lab(2), mnist_dir, LAUNCHERS[launcher], fault=fault, hosts="n1:2,n2:1")
    output = run.output()
    assert run.process.returncode == 6, output
    assert "rank 1 on n1 died" in output
    assert "exited with status 0 and left no result" in output
    assert "It wrote no progress record." in output
    assert time.time() - float((run.site / "injected_at").read_text()) < DEATH_BOUND_SECONDS
    assert left(run.lab) == []


@pytest.mark.parametrize(("launcher", "fault"), cases(ON_A_HOST))
def test_a_host_that_is_lost_is_named(make_lab, mnist_dir, every_backend, record, launcher, fault):
    lab = make_lab(2)
    run = Run(lab, mnist_dir, LAUNCHERS[launcher])
    run.wait_for_training()
    lost, (kept, *_) = lab.hosts[1], lab.hosts
    getattr(lost, fault)()
    began = time.monotonic()
    output = run.output()
    took = time.monotonic() - began
    assert run.process.returncode == FAILURES[fault].code, output
    assert "Host n2 (-H:2)" in output
    assert took < BOUND_SECONDS
    gone_from(lab, [lab.login, kept], 2)
    if fault != "stop":
        gone_from(lab, [lost], GONE_SECONDS)
    record(FAILURES[fault], launcher, took)


@pytest.mark.parametrize(("launcher", "kind"), cases(["ctrl-c"]))
def test_ctrl_c_ends_everything_on_all_hosts(make_lab, mnist_dir, every_backend, record, launcher, kind):
    lab = make_lab(2)
    run = Run(lab, mnist_dir, LAUNCHERS[launcher])
    run.wait_for_training()
    os.kill(parent_of(run), signal.SIGINT)
    began = time.monotonic()
    output = run.output()
    took = time.monotonic() - began
    assert run.process.returncode == FAILURES[kind].code, output
    assert "The finished part is kept" in output
    assert took < BOUND_SECONDS
    assert left(lab) == []
    record(FAILURES[kind], launcher, took)


@pytest.mark.parametrize(("launcher", "kind"), cases(["parent"]))
def test_nothing_outlives_a_parent_that_is_killed(make_lab, mnist_dir, every_backend, record, launcher, kind):
    lab = make_lab(2)
    run = Run(lab, mnist_dir, LAUNCHERS[launcher])
    run.wait_for_training()
    os.kill(parent_of(run), signal.SIGKILL)
    began = time.monotonic()
    run.process.communicate(timeout=60)
    until(lambda: left(lab, [lab.login, *lab.hosts]) == [], BOUND_SECONDS)
    record(FAILURES[kind], launcher, time.monotonic() - began)


@pytest.mark.faults
def test_finished_launches_are_kept(make_lab, mnist_dir):
    lab = make_lab(2)
    run = Run(lab, mnist_dir, "ddp", "--repeats", "20", steps=200)
    until(lambda: list((lab.folder / "run").glob("launches/03-*/rank-1.progress")), 150)
    lab.hosts[1].stop()
    output = run.output()
    assert run.process.returncode == 9, output
    assert len(read_run(lab.folder / "run").launches) >= 2
    assert "The finished part is kept" in output


@pytest.mark.faults
def test_a_port_that_was_taken_in_the_meantime_is_tried_again(make_lab, mnist_dir, record):
    fault = {"module": "compare.launch.cluster", "port": 22}  # sshd's
    began = time.monotonic()
    run = Run(make_lab(2), mnist_dir, "ddp", fault=fault, steps=30)
    output = run.output()
    took = time.monotonic() - began
    assert run.process.returncode == FAILURES["port"].code, output
    assert "starts again: another process took its port" in output
    assert took < FAILURES["port"].bound_seconds
    assert left(run.lab) == []
    record(FAILURES["port"], "torchrun", took)


@pytest.mark.parametrize(("launcher", "host"), cases(BEFORE_A_RUN))
def test_a_host_that_does_not_answer_is_named_before_anything_starts(
    make_lab, mnist_dir, every_backend, record, launcher, host
):
    lab = make_lab(1)
    took = refused(lab, f"n1,{host}", mnist_dir, LAUNCHERS[launcher], FAILURES[host], [f"Host {host} (-H:2)"])
    assert not (lab.folder / "run").exists()
    assert left(lab) == []
    record(FAILURES[host], launcher, took)


@pytest.mark.parametrize(("launcher", "kind"), cases(["slots"]))
def test_more_ranks_than_slots_are_refused(make_lab, mnist_dir, every_backend, record, launcher, kind):
    words = ["3 ranks do not fit: the hosts take 2"]
    took = refused(make_lab(1), "n1:2", mnist_dir, LAUNCHERS[launcher], FAILURES[kind], words, "-np", "3")
    record(FAILURES[kind], launcher, took)


@pytest.mark.parametrize(("launcher", "kind"), cases(["interpreter"]))
def test_a_wrong_interpreter_on_one_host_is_named(make_lab, mnist_dir, every_backend, record, launcher, kind):
    lab = make_lab(2)
    interpreter = os.path.realpath(arguments("n1", mnist_dir)[0])
    lab.hosts[1].run(["mount", "--bind", "/run/lab/nothing", interpreter])
    words = ["Host n2 (-H:2)", "Permission denied"]
    took = refused(lab, "n1,n2", mnist_dir, LAUNCHERS[launcher], FAILURES[kind], words)
    assert left(lab, [lab.login, lab.hosts[0]]) == []
    record(FAILURES[kind], launcher, took)


def refused(lab, hosts, mnist_dir, arm, failure, words, *more):
    """Execute a run that is refused, and return how long it took."""
    began = time.monotonic()
    done = compare(lab, hosts, mnist_dir, "--backend", arm, *more)
    took = time.monotonic() - began
    assert done.returncode == failure.code, done.stderr
    for said in words:
        assert said in done.stderr
    assert took < failure.bound_seconds
    return took


def parent_of(run):
    """Return the process of `compare run`, a child of the one started."""
    (parent,) = [p for p in run.lab.login.processes() if "compare" in p.cmdline() and "run" in p.cmdline()]
    return parent.pid
