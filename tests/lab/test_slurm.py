"""Test runs in jobs of a real Slurm, without sshd or hostfile."""

import os
import signal
import sys
import time

import pytest

from compare.schema.store import read_run
from tests.faults.started import a_fault
from tests.lab.comparing import ARMS, RUN, compare, left
from tests.lab.slurm import Slurm, why_no_slurm
from tests.lab.test_failures import BOUND_SECONDS, GONE_SECONDS, StartedRun, gone_from, parent_of
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

COMPARE = [sys.executable, "-m", "compare"]
CASES = {
    "2+1": (2, ["-N2", "-n3"], [2, 1]),
    "2x1": (2, ["-N2"], [1, 1]),
    "2x2": (2, ["-N2", "--ntasks-per-node=2"], [2, 2]),
    "4x1": (4, ["-N4"], [1, 1, 1, 1]),
}
KILL_WAIT_SECONDS = 30.0


@pytest.fixture
def make_slurm(make_lab):
    """Start labs with Slurm, whose hosts run no sshd."""
    if reason := why_no_slurm():
        pytest.skip(reason)

    def make(hosts=2, **options):
        lab = make_lab(hosts, sshd=False)
        Slurm(lab, **options)
        return lab

    return make


def salloc(*options):
    return ["salloc", "--quiet", *options]


def require_one_model(run, slots):
    assert run.complete
    for launch in run.launches:
        assert [rank.host for rank in launch.ranks] == [
            f"n{n}" for n, count in enumerate(slots, 1) for _ in range(count)
        ]
        assert len({rank.final_hash for rank in launch.ranks}) == 1


@pytest.mark.parametrize(
    "case", ["2+1", *(pytest.param(name, marks=pytest.mark.rest) for name in ("2x1", "2x2", "4x1"))]
)
def test_run_in_salloc_trains_one_model_under_every_launcher(make_slurm, mnist_dir, every_backend, case):
    hosts, options, slots = CASES[case]
    lab = make_slurm(hosts)
    more = ("--backend", ARMS, "--interleave", "blocks")
    done = compare(lab, None, mnist_dir, *more, within=salloc(*options))
    assert done.returncode == 0, done.stderr
    assert f"Hosts: {hosts} of Slurm job 1" in done.stderr
    require_one_model(read_run(lab.folder / "run"), slots)
    wait_until(lambda: left(lab) == [], 10)


def test_submitted_run_without_environment_shows_its_result(make_slurm, mnist_dir, every_backend):
    """It runs on the first node, with tasks bound to CPUs."""
    lab = make_slurm(2, task="affinity")
    words = ["run", "--backend", "ddp,mpi", "--steps", 30, "--warmup", 5, "--repeats", 1, "--no-control"]
    done = lab.login.run(
        [*COMPARE, "submit", "--wait", "--ranks-per-node", 2, "--option=--export=NONE", "--"]
        + [*words, "--data-dir", mnist_dir, "--output", RUN],
        cwd="/run/lab",
        timeout_seconds=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hosts: 2 of Slurm job 1" in done.stdout
    assert "against ddp" in done.stdout
    require_one_model(read_run(lab.folder / "run"), [2, 2])
    wait_until(lambda: left(lab) == [], 10)


@pytest.mark.rest
def test_run_in_a_step_takes_the_hosts_of_its_job(make_slurm, mnist_dir, every_backend):
    lab = make_slurm(2)
    within = [*salloc("-N2", "-n3"), "srun", "-N1", "-n1"]
    done = compare(lab, None, mnist_dir, "--backend", ARMS, within=within)
    assert done.returncode == 0, done.stderr
    require_one_model(read_run(lab.folder / "run"), [2, 1])


REFUSED = {
    "several tasks": (2, [*salloc("-N2"), "srun", "-n2"], "srun starts 2 times"),
    "too little time": (11, salloc("-N2", "-t1"), "ends before every arm can run once"),
}


def test_run_that_cannot_work_is_refused_before_its_start(make_slurm, mnist_dir):
    lab = make_slurm(2)
    for code, within, says in REFUSED.values():
        done = compare(lab, None, mnist_dir, "--backend", "ddp", within=within)
        assert done.returncode == code, done.stderr
        assert says in done.stderr
        assert list((lab.folder / "run").glob("launches/*")) == []
    done = lab.login.run([*salloc("-N2"), *COMPARE, "doctor", "--quick"])
    assert done.returncode == 0, done.stdout
    assert "Examining 2 hosts of Slurm job" in done.stderr


def scancel(run):
    run.lab.login.run(["scancel", "1"])


def preempt(run):
    run.lab.login.start([*salloc("--partition=urgent", "-N2", "-n4"), "sleep", "1"])


def reach_the_limit(run):
    assert run.lab.login.run(["scontrol", "update", "JobId=1", "EndTime=now"]).returncode == 0


def lose_the_link(run):
    run.lab.hosts[1].link_down()


def lose_the_node(run):
    run.lab.hosts[1].stop()


def interrupt(run):
    os.kill(parent_of(run), signal.SIGINT)


ENDINGS = {
    "scancel": (scancel, 13, "Slurm job 1 was cancelled.", KILL_WAIT_SECONDS),
    "preemption": (preempt, 13, "Slurm job 1 was preempted.", KILL_WAIT_SECONDS),
    "time limit": (reach_the_limit, 13, "Slurm job 1 reached its time limit.", 2 * KILL_WAIT_SECONDS),
    "link": (lose_the_link, 9, "Host n2 (Slurm job 1)", BOUND_SECONDS),
    "node": (lose_the_node, 9, "Host n2 (Slurm job 1)", BOUND_SECONDS),
    "Ctrl-C": (interrupt, 130, "Interrupted.", BOUND_SECONDS),
}
QUICK = {("ddp", "scancel"), ("mpi", "preemption"), ("horovod", "link")}


@pytest.mark.parametrize(
    ("arm", "kind"),
    [
        pytest.param(arm, kind, marks=[] if (arm, kind) in QUICK else pytest.mark.faults)
        for arm in ("ddp", "mpi", "horovod")
        for kind in ENDINGS
    ],
)
def test_run_that_ends_early_names_the_reason(make_slurm, mnist_dir, every_backend, arm, kind):
    break_it, code, says, bound = ENDINGS[kind]
    lab = make_slurm(2)
    run = StartedRun(lab, mnist_dir, arm, hosts=None, within=salloc("-N2", "-t30"))
    run.wait_for_training()
    began = time.monotonic()
    break_it(run)
    printed = run.wait()
    took = time.monotonic() - began
    print(f"{arm}, {kind}: {took:.1f} s")
    assert run.process.returncode == code, printed
    assert says in printed
    assert "The finished part is kept" in printed
    assert took < bound
    alive = [lab.login, lab.hosts[0]] if kind in {"link", "node"} else lab.running()
    gone_from(lab, alive, 10)
    if kind == "link":  # Slurm's own step daemon stays, until it can report
        wait_until(lambda: all("slurmstepd" in line for line in left(lab, [lab.hosts[1]])), GONE_SECONDS)


@pytest.mark.parametrize(
    "arm", ["ddp", *(pytest.param(a, marks=pytest.mark.faults) for a in ("horovod", "mpi"))]
)
def test_parent_killed_in_a_job_leaves_nothing_on_any_node(make_slurm, mnist_dir, every_backend, arm):
    lab = make_slurm(2)
    run = StartedRun(lab, mnist_dir, arm, hosts=None, within=salloc("-N2"))
    run.wait_for_training()
    os.kill(parent_of(run), signal.SIGKILL)
    run.process.communicate(timeout=60)
    gone_from(lab, lab.running(), BOUND_SECONDS)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "code", "says"),
    [
        ("kill", 6, "rank 1 on n2 died"),
        ("raise", 6, "rank 1 on n2 failed"),
        ("hang", 7, "rank 1 on n2 made no progress for 12 s"),
    ],
)
@pytest.mark.parametrize("arm", ["ddp", "horovod", "mpi"])
def test_rank_that_fails_in_a_job_is_named(make_slurm, mnist_dir, every_backend, arm, kind, code, says):
    lab = make_slurm(2)
    run = StartedRun(lab, mnist_dir, arm, fault=a_fault(kind), hosts=None, within=salloc("-N2"))
    printed = run.wait()
    took = run.seconds_since_the_fault()
    print(f"{arm}, {kind}: {took:.1f} s")
    assert run.process.returncode == code, printed
    assert says in printed
    assert took < BOUND_SECONDS
    gone_from(lab, lab.running(), 10)
