"""A failure on a host is named with rank and host.

All tests are for ``make test-hosts``. Those without the mark ``faults`` are for continuous integration too.
They have one failure for each way in which another host takes part. Unit tests and ``tests/faults`` have the
others.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from compare.schema.launch_files import LEASE_SECONDS
from compare.schema.store import read_run
from tests.comparing import inject
from tests.faults.started import EARLY, KILLED, LAUNCHERS, UNRECORDED, a_fault, is_training
from tests.lab.comparing import arguments, compare, left, start
from tests.lab.failure_table import Failure
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

STALL_SECONDS = 12.0
BOUND_SECONDS = 30.0
UNREACHABLE_BOUND_SECONDS = 15.0
NOTICED_SECONDS = 15.0
DEATH_BOUND_SECONDS = 10.0
# Behind a dead link, a rank is ended by its own witness when its lease expires.
GONE_SECONDS = STALL_SECONDS + LEASE_SECONDS
IN_A_RANK = {
    "raise": ["rank 1 on n2 failed", "RuntimeError: injected by the test", "sitecustomize.py:"],
    "kill": ["rank 1 on n2 died", "It was killed by SIGKILL (kill -9, or out of memory)."],
    "hang": ["rank 1 on n2 made no progress for 12 s", "sitecustomize.py:"],
}
DEATHS = {
    "exit 3": "It exited with status 3 and left no result.",
    "crash": "It was killed by SIGSEGV (Segmentation fault).",
    "kill its witness": UNRECORDED,
    f"kill {EARLY}": KILLED,
    f"exit 0 {EARLY}": "It exited with status 0 and left no result.",
}
"""Further deaths; the table of docs/hosts.md does not list them."""
ON_A_HOST = ("link_down", "drop_packets", "stop")
BEFORE_A_RUN = ("down", "silent", "no-such-host")
QUICK = {
    ("horovodrun-gloo", "raise"),
    ("mpirun", "hang"),
    ("torchrun", f"exit 0 {EARLY}"),
    ("horovodrun-gloo", "parent"),
    ("mpirun", "ctrl-c"),
    ("torchrun", "silent"),
    ("torchrun", "interpreter"),
}
"""What continuous integration tries, beside a link that goes down in turns."""
FAILURES = {
    "raise": Failure("a rank raises", 6, "rank, host, error, file:line", BOUND_SECONDS),
    "kill": Failure("a rank is killed", 6, "rank, host", BOUND_SECONDS),
    "hang": Failure("a rank hangs (stall 12 s)", 7, "rank, host, file:line", BOUND_SECONDS),
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
    "parent": Failure("`ringside` is killed (-9)", "–", "–", BOUND_SECONDS),
}
"""Every row of the table in docs/hosts.md, in its order."""


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


class StartedRun:
    """A run with a fault, a rank each on n1 and n2."""

    def __init__(self, lab, mnist_dir, arm, *more, fault=None, **options):
        self.lab = lab
        self.injected = lab.folder / "injected"
        inject("faults/injected", self.injected, fault)
        self.process = start(
            lab,
            options.get("hosts", "n1,n2"),
            mnist_dir,
            *("--backend", arm, "--timeout", f"5m:stall={STALL_SECONDS}", "-x", "MY_TOKEN", *more),
            steps=options.get("steps", 28_000),
            within=options.get("within", ()),
            environment={"PYTHONPATH": "/run/lab/injected", "MY_TOKEN": "hunter2"},
        )

    def wait_for_training(self):
        wait_until(lambda: is_training(self.lab.folder / "run") or self.process.poll() is not None, 150)
        assert self.process.poll() is None, self.process.communicate()

    def wait(self):
        """Wait for its end, and return its messages as one line."""
        printed = " ".join(self.process.communicate(timeout=150)[1].split())
        assert "Traceback" not in printed
        return printed

    def seconds_since_the_fault(self):
        return time.time() - float((self.injected / "injected_at").read_text())


def gone_from(lab, machines, seconds):
    wait_until(lambda: left(lab, machines) == [], seconds)


@pytest.mark.parametrize(("launcher", "kind"), cases(IN_A_RANK))
def test_rank_that_fails_is_named_with_its_host(make_lab, mnist_dir, every_backend, record, launcher, kind):
    run = StartedRun(make_lab(2), mnist_dir, LAUNCHERS[launcher], fault=a_fault(kind))
    printed = run.wait()
    took = run.seconds_since_the_fault()
    assert run.process.returncode == FAILURES[kind].code, printed
    for words in IN_A_RANK[kind]:
        assert words in printed
    assert took < BOUND_SECONDS
    assert not read_run(run.lab.folder / "run").complete
    assert left(run.lab) == []
    record(FAILURES[kind], launcher, took)


@pytest.mark.parametrize(("launcher", "kind"), cases(DEATHS))
def test_rank_that_dies_is_named_with_its_host(make_lab, mnist_dir, every_backend, launcher, kind):
    run = StartedRun(make_lab(2), mnist_dir, LAUNCHERS[launcher], fault=a_fault(kind), hosts="n1:2,n2:1")
    printed = run.wait()
    took = run.seconds_since_the_fault()
    print(f"{launcher}, {kind}: {took:.1f} s")
    assert run.process.returncode == 6, printed
    assert "rank 1 on n1 died" in printed
    assert DEATHS[kind] in printed
    assert ("It wrote no progress record." in printed) == (EARLY in kind)
    assert took < DEATH_BOUND_SECONDS
    assert left(run.lab) == []


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("victim", ["rank", "witness"])
def test_rank_killed_from_outside_is_named_with_its_host(
    make_lab, mnist_dir, every_backend, launcher, victim
):
    lab = make_lab(2)
    run = StartedRun(lab, mnist_dir, LAUNCHERS[launcher])
    run.wait_for_training()
    processes = [p for p in lab.hosts[1].processes() if "compare.worker" in p.cmdline()]
    witness, *_ = [p for p in processes if any(child in processes for child in p.children())]
    process = witness if victim == "witness" else witness.children()[0]
    process.kill()
    began = time.monotonic()
    printed = run.wait()
    took = time.monotonic() - began
    print(f"{launcher}, {victim}: {took:.1f} s")
    assert run.process.returncode == 6, printed
    assert "rank 1 on n2 died" in printed
    assert (UNRECORDED if victim == "witness" else KILLED) in printed
    assert took < DEATH_BOUND_SECONDS
    assert left(lab) == []


@pytest.mark.parametrize(("launcher", "fault"), cases(ON_A_HOST))
def test_host_that_is_lost_is_named(make_lab, mnist_dir, every_backend, record, launcher, fault):
    lab = make_lab(2)
    run = StartedRun(lab, mnist_dir, LAUNCHERS[launcher])
    run.wait_for_training()
    lost, (kept, *_) = lab.hosts[1], lab.hosts
    getattr(lost, fault)()
    began = time.monotonic()
    printed = run.wait()
    took = time.monotonic() - began
    assert run.process.returncode == FAILURES[fault].code, printed
    assert "Host n2 (-H:2)" in printed
    assert took < NOTICED_SECONDS
    gone_from(lab, [lab.login, kept], 2)
    if fault != "stop":
        gone_from(lab, [lost], GONE_SECONDS)
    record(FAILURES[fault], launcher, took)


@pytest.fixture
def in_turns(make_lab, mnist_dir, every_backend):
    """Start a cohort over two hosts, and return it during its turns."""
    run = StartedRun(make_lab(2), mnist_dir, "ddp,horovod", "--interleave", "blocks", steps=50)
    wait_until(lambda: turns_begin(run.lab) or run.process.poll() is not None, 150)
    return run


@pytest.mark.parametrize("victim", ["link", pytest.param("parent", marks=pytest.mark.faults)])
def test_nothing_stopped_is_left_on_hosts(in_turns, victim):
    """A link goes down or the parent is killed during turns."""
    run, lab = in_turns, in_turns.lab
    began = time.monotonic()
    if victim == "link":
        lab.hosts[1].link_down()
        printed = run.wait()
        assert run.process.returncode == FAILURES["link_down"].code, printed
        assert "Host n2 (-H:2)" in printed
        assert time.monotonic() - began < NOTICED_SECONDS
    else:
        os.kill(parent_of(run), signal.SIGKILL)
        run.process.communicate(timeout=60)
    gone_from(lab, [lab.login, lab.hosts[0]], BOUND_SECONDS)
    gone_from(lab, [lab.hosts[1]], GONE_SECONDS)


IN_TURNS = {
    "rank": (6, ["horovod, round 1: rank 1 on n2 died", KILLED]),
    "agent": (9, ["Host n2 (-H:2)"]),
    "launcher": (6, ["horovod, round 1", "the launcher was killed (signal 9)"]),
}


@pytest.mark.faults
@pytest.mark.parametrize("victim", IN_TURNS)
def test_death_while_ranks_are_stopped_is_named_with_its_host(in_turns, victim):
    """The stopped rank, its agent or its launcher is killed."""
    run, lab = in_turns, in_turns.lab
    wait_until(lambda: stopped_ranks(lab.hosts[1]), 20)
    rank = stopped_ranks(lab.hosts[1])[-1]
    killed = {
        "rank": lambda: rank,
        "agent": lambda: next(p for p in lab.hosts[1].processes() if is_agent_of(rank, p)),
        "launcher": lambda: next(p for p in lab.login.processes() if is_horovodrun(p)),
    }[victim]()
    killed.kill()
    began = time.monotonic()
    printed = run.wait()
    code, words = IN_TURNS[victim]
    assert run.process.returncode == code, printed
    for text in words:
        assert text in printed
    gone_from(lab, [lab.login, *lab.hosts], DEATH_BOUND_SECONDS - (time.monotonic() - began))


def stopped_ranks(machine):
    """Return the stopped ranks of a machine, a witness before its rank."""
    return [p for p in machine.processes() if "compare.worker" in p.cmdline() and p.status() == "stopped"]


def is_agent_of(rank, process):
    """Return whether a process is the agent's, of a rank's launch."""
    pipes = f"{rank.environ()['TMPDIR']}/turns"
    return "compare.launch.agent" in process.cmdline() and any(
        str(link.readlink()).startswith(pipes) for link in Path(f"/proc/{process.pid}/fd").iterdir()
    )


def is_horovodrun(process):
    return any(word.endswith("/horovodrun") for word in process.cmdline()[:2])


def turns_begin(lab, round_=1):
    """Return whether both launches of a cohort have warmed up."""
    numbers = (2 * round_ - 1, 2 * round_)
    files = [f for n in numbers for f in (lab.folder / "run").glob(f"launches/{n:02d}-*/rank-0.progress")]
    return len(files) == 2 and all('"turn"' in file.read_text() for file in files)


@pytest.mark.parametrize(("launcher", "kind"), cases(["ctrl-c"]))
def test_ctrl_c_ends_everything_on_all_hosts(make_lab, mnist_dir, every_backend, record, launcher, kind):
    lab = make_lab(2)
    run = StartedRun(lab, mnist_dir, LAUNCHERS[launcher])
    run.wait_for_training()
    shown = [line for machine in (lab.login, *lab.hosts) for line in machine.command_lines()]
    assert len(shown) > 4
    assert not [line for line in shown if "hunter2" in line], "no arguments show a secret"
    os.kill(parent_of(run), signal.SIGINT)
    began = time.monotonic()
    printed = run.wait()
    took = time.monotonic() - began
    assert run.process.returncode == FAILURES[kind].code, printed
    assert ("The finished part is kept" in printed) is bool(read_run(lab.folder / "run").launches)
    assert took < BOUND_SECONDS
    assert left(lab) == []
    record(FAILURES[kind], launcher, took)


@pytest.mark.parametrize(
    ("launcher", "kind", "how"),
    [
        *(
            pytest.param(*case.values, signal.SIGKILL, marks=case.marks, id=case.id)
            for case in cases(["parent"])
        ),
        pytest.param("torchrun", "parent", signal.SIGSTOP, marks=pytest.mark.faults, id="torchrun-stopped"),
    ],
)
def test_parent_killed_or_stopped_leaves_nothing_on_any_host(
    make_lab, mnist_dir, every_backend, record, launcher, kind, how
):
    lab = make_lab(2)
    run = StartedRun(lab, mnist_dir, LAUNCHERS[launcher])
    run.wait_for_training()
    os.kill(parent_of(run), how)
    began = time.monotonic()
    if how == signal.SIGKILL:
        run.process.communicate(timeout=60)
        wait_until(lambda: left(lab, [lab.login, *lab.hosts]) == [], BOUND_SECONDS)
        record(FAILURES[kind], launcher, time.monotonic() - began)
    else:
        gone_from(lab, lab.hosts, LEASE_SECONDS + 6)


@pytest.mark.faults
def test_agent_killed_on_a_host_is_named(make_lab, mnist_dir):
    lab = make_lab(2)
    run = StartedRun(lab, mnist_dir, "ddp")
    run.wait_for_training()
    agents = [
        process
        for process in lab.hosts[1].processes()
        if "compare.launch.agent" in process.cmdline() and "python" in process.name()
    ]
    (agent,) = [process for process in agents if process.ppid() not in {one.pid for one in agents}]
    agent.kill()
    began = time.monotonic()
    printed = run.wait()
    assert time.monotonic() - began < NOTICED_SECONDS
    assert run.process.returncode == 9, printed
    assert "Host n2 (-H:2)" in printed
    gone_from(lab, [lab.login, *lab.hosts], NOTICED_SECONDS)


@pytest.mark.faults
def test_launches_that_finished_are_kept(make_lab, mnist_dir):
    lab = make_lab(2)
    run = StartedRun(lab, mnist_dir, "ddp", "--repeats", "20", steps=200)
    wait_until(lambda: list((lab.folder / "run").glob("launches/03-*/rank-1.progress")), 150)
    lab.hosts[1].stop()
    printed = run.wait()
    assert run.process.returncode == 9, printed
    assert len(read_run(lab.folder / "run").launches) >= 2
    assert "The finished part is kept" in printed


@pytest.mark.faults
def test_port_that_was_taken_is_tried_again(make_lab, mnist_dir, record):
    fault = {"module": "compare.launch.cluster", "port": 22}  # sshd's
    began = time.monotonic()
    run = StartedRun(make_lab(2), mnist_dir, "ddp", fault=fault, steps=30)
    printed = run.wait()
    took = time.monotonic() - began
    assert run.process.returncode == FAILURES["port"].code, printed
    assert "starts again: another process took its port" in printed
    assert took < FAILURES["port"].bound_seconds
    assert left(run.lab) == []
    record(FAILURES["port"], "torchrun", took)


@pytest.mark.parametrize(("launcher", "host"), cases(BEFORE_A_RUN))
def test_host_that_does_not_answer_is_named_before_the_start(
    make_lab, mnist_dir, every_backend, record, launcher, host
):
    lab = make_lab(1)
    took = refused(lab, f"n1,{host}", mnist_dir, LAUNCHERS[launcher], FAILURES[host], [f"Host {host} (-H:2)"])
    assert not (lab.folder / "run").exists()
    assert left(lab) == []
    record(FAILURES[host], launcher, took)


@pytest.mark.parametrize(("launcher", "kind"), cases(["slots"]))
def test_ranks_beyond_the_slots_are_refused(make_lab, mnist_dir, every_backend, record, launcher, kind):
    words = ["3 ranks do not fit: the hosts take 2"]
    took = refused(make_lab(1), "n1:2", mnist_dir, LAUNCHERS[launcher], FAILURES[kind], words, "-np", "3")
    record(FAILURES[kind], launcher, took)


@pytest.mark.parametrize(("launcher", "kind"), cases(["interpreter"]))
def test_wrong_interpreter_on_one_host_is_named(make_lab, mnist_dir, every_backend, record, launcher, kind):
    lab = make_lab(2)
    interpreter = os.path.realpath(arguments("n1", mnist_dir)[0])
    lab.hosts[1].run(["mount", "--bind", "/run/lab/nothing", interpreter])
    words = ["Host n2 (-H:2)", "Permission denied"]
    took = refused(lab, "n1,n2", mnist_dir, LAUNCHERS[launcher], FAILURES[kind], words)
    assert left(lab, [lab.login, lab.hosts[0]]) == []
    record(FAILURES[kind], launcher, took)


def refused(lab, hosts, mnist_dir, arm, failure, words, *more):
    """Execute a run that is refused, and return its seconds."""
    began = time.monotonic()
    done = compare(lab, hosts, mnist_dir, "--backend", arm, *more)
    took = time.monotonic() - began
    assert done.returncode == failure.code, done.stderr
    for text in words:
        assert text in done.stderr
    assert took < failure.bound_seconds
    return took


def parent_of(run):
    """Return the process of `ringside run`, for which nsenter waits."""
    (parent,) = [p for p in run.lab.login.processes() if p.cmdline()[1:4] == ["-m", "compare", "run"]]
    return parent.pid
