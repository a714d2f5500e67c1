"""Test runs in jobs of a real Slurm, without sshd or hostfile."""

import os
import signal
import sys
import time

import pytest

from compare.schema.scale import folder_of
from compare.schema.store import read_run
from tests.faults.started import a_fault
from tests.lab.comparing import ARMS, RUN, compare, left
from tests.lab.failure_table import Failure
from tests.lab.slurm import Slurm, why_no_slurm
from tests.lab.test_failures import (
    BOUND_SECONDS,
    GONE_SECONDS,
    StartedRun,
    gone_from,
    parent_of,
    stopped_ranks,
    turns_begin,
)
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


@pytest.mark.timed
@pytest.mark.parametrize(
    ("case", "arms"),
    [("2+1", "mpi,horovod"), *(pytest.param(name, ARMS, marks=pytest.mark.rest) for name in CASES)],
)
def test_run_in_salloc_trains_one_model_under_every_launcher(
    make_slurm, mnist_dir, every_backend, case, arms
):
    """``.ci/run`` takes those that start ranks by srun; torchrun is in the submitted run below."""
    hosts, options, slots = CASES[case]
    lab = make_slurm(hosts)
    more = ("--backend", arms, "--interleave", "blocks")
    done = compare(lab, None, mnist_dir, *more, within=salloc(*options))
    assert done.returncode == 0, done.stderr
    assert f"Hosts: {hosts} of Slurm job 1" in done.stderr
    require_one_model(read_run(lab.folder / "run"), slots)
    wait_until(lambda: left(lab) == [], 10)


@pytest.mark.timed
def test_submitted_run_without_environment_shows_its_result(make_slurm, mnist_dir, every_backend):
    """It runs on the first node, with tasks bound to CPUs."""
    lab = make_slurm(2, task="affinity")
    words = ["run", "--backend", "ddp", "--steps", "30:warmup=5", "--repeats", 1, "--no-control"]
    done = lab.login.run(
        [*COMPARE, "submit", "--wait", "--ranks-per-node", 2, "--option=--export=NONE", "--"]
        + [*words, "--data", mnist_dir, "--output", RUN],
        cwd="/run/lab",
        timeout_seconds=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hosts: 2 of Slurm job 1" in done.stdout
    assert "against ddp" in done.stdout
    require_one_model(read_run(lab.folder / "run"), [2, 2])
    wait_until(lambda: left(lab) == [], 10)


@pytest.mark.rest
def test_submitted_scale_has_every_count(make_slurm, mnist_dir):
    lab = make_slurm(2)
    words = ["scale", "-np", "1,2", "--backend", "ddp", "--repeats", 1, "--steps", "30:warmup=5"]
    words += ["--no-control", "--data", mnist_dir, "--output", RUN]
    done = lab.login.run(
        [*COMPARE, "submit", "--wait", "--", *words],
        cwd="/run/lab",
        timeout_seconds=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for count in (1, 2):
        require_one_model(read_run(folder_of(lab.folder / "run", count)), [1] * count)


@pytest.mark.rest
def test_run_in_a_step_takes_the_hosts_of_its_job(make_slurm, mnist_dir, every_backend):
    lab = make_slurm(2)
    within = [*salloc("-N2", "-n3"), "srun", "-N1", "-n1"]
    done = compare(lab, None, mnist_dir, "--backend", ARMS, within=within)
    assert done.returncode == 0, done.stderr
    require_one_model(read_run(lab.folder / "run"), [2, 1])


REFUSED = {
    "several tasks": (2, [*salloc("-N2"), "srun", "-n2"], "srun starts ringside 2 times"),
    "too little time": (11, salloc("-N2", "-t1"), "ends before every arm can run once"),
}


def test_run_that_cannot_work_is_refused_before_its_start(make_slurm, mnist_dir):
    lab = make_slurm(2)
    for code, within, says in REFUSED.values():
        done = compare(lab, None, mnist_dir, "--backend", "ddp", within=within)
        assert done.returncode == code, done.stderr
        assert says in done.stderr
        assert list((lab.folder / "run").glob("launches/*")) == []
    words = ["scale", "-np", "1,2", "--backend", "ddp", "--data", mnist_dir, "--output", "/run/lab/scale"]
    done = lab.login.run([*salloc("-N2", "-t1"), *COMPARE, *words])
    assert done.returncode == 11, done.stderr
    assert not (lab.folder / "scale").exists()
    done = lab.login.run([*salloc("-N2"), *COMPARE, "doctor", "--quick"])
    assert done.returncode == 0, done.stdout
    assert "Examining 2 hosts of Slurm job" in done.stderr


WRONG_NUMBERS = {
    "": "SLURM_JOB_ID is '', which is not a job number",
    "0": "SLURM_JOB_ID is '0', which is not a job number",
    "4711": "Slurm does not know a job 4711",
    "1": "Its state is COMPLETED",
    "2": "Slurm job 2 is not yours",
}


def test_number_of_a_job_is_asked_for_at_the_controller(make_slurm):
    lab = make_slurm(2)
    assert lab.login.run([*salloc("-N2"), "true"]).returncode == 0
    another = ["setpriv", "--reuid=65534", "--clear-groups"]
    assert lab.login.run([*another, *salloc("-N1", "--no-shell")]).returncode == 0
    planned = [*COMPARE, "run", "--backend", "ddp", "--steps", "40", "--dry-run"]
    for number, says in WRONG_NUMBERS.items():
        done = lab.login.run(planned, environment={"SLURM_JOB_ID": number})
        assert done.returncode == 2, done.stdout + done.stderr
        assert says in done.stderr
        assert "--engine local" in done.stderr
    assert lab.login.run(["scancel", "2"]).returncode == 0
    alone = 'exec env -i PATH="$PATH" HOME="$HOME" SLURM_JOB_ID="$SLURM_JOB_ID" "$@"'
    two_each = salloc("-N2", "--ntasks-per-node=2")
    done = lab.login.run([*two_each, "sh", "-c", alone, "sh", *planned])
    assert done.returncode == 0, done.stderr
    assert "hosts     2 of Slurm job" in done.stdout
    assert "--nnodes=2 --nproc_per_node=2" in done.stdout


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


def kill_a_rank(run):
    """Kill a rank that is stopped until its next turn."""
    stopped_ranks(run.lab.hosts[1])[-1].kill()


def kill_the_parent(run):
    os.kill(parent_of(run), signal.SIGKILL)


FAILURES = {
    "kill": Failure("a rank is killed", 6, "rank, host", BOUND_SECONDS),
    "raise": Failure("a rank raises", 6, "rank, host, error, file:line", BOUND_SECONDS),
    "stop": Failure("a rank is stopped (stall 12 s)", 7, "rank, host", BOUND_SECONDS),
    "silent": Failure("a node is silent from the start", 9, "host", BOUND_SECONDS),
    "link": Failure("a node's link goes down", 9, "host", BOUND_SECONDS),
    "node": Failure("a node goes down", 9, "host", BOUND_SECONDS),
    "scancel": Failure("`scancel`", 13, "that Slurm cancelled the job", KILL_WAIT_SECONDS),
    "preemption": Failure("preemption", 13, "that Slurm preempted the job", KILL_WAIT_SECONDS),
    "time limit": Failure("the time limit", 13, "the limit", 2 * KILL_WAIT_SECONDS),
    "Ctrl-C": Failure("Ctrl-C", 130, "what was finished", BOUND_SECONDS),
    "parent": Failure("`ringside` is killed (-9)", "–", "–", BOUND_SECONDS),
}
"""Every row of the table in docs/slurm.md, in its order."""
IN_A_RANK = {
    "kill": "rank 1 on n2 died. It was killed by SIGKILL",
    "raise": "rank 1 on n2 failed. RuntimeError: injected by the test",
    "stop": "rank 1 on n2 made no progress for 12 s.",
}
FROM_OUTSIDE = {
    "kill": (kill_a_rank, "horovod, round 1: rank 1 on n2 died"),
    "link": (lose_the_link, "Host n2 (Slurm job 1)"),
    "node": (lose_the_node, "Host n2 (Slurm job 1)"),
    "scancel": (scancel, "Slurm job 1 was cancelled."),
    "preemption": (preempt, "Slurm job 1 was preempted."),
    "time limit": (reach_the_limit, "Slurm job 1 reached its time limit."),
    "Ctrl-C": (interrupt, "Interrupted."),
}
IN_A_JOB = salloc("-N2", "-t30")
# It submits the words of a run: they follow those of the interpreter.
SUBMIT = 'python=$1; shift 4; cd /run/lab; exec "$python" -m compare submit --wait -- run "$@"'
ARM = {"turns": "ddp,horovod", "ddp": "ddp", "horovod": "horovod", "mpi": "mpi"}
QUICK = {("turns", "scancel")}


@pytest.fixture
def start_in_a_job(make_slurm, mnist_dir, every_backend):
    """Start a run in a job: one arm, or two in turns."""

    def start(column, *, within=IN_A_JOB, **options):
        turns = ("--interleave", "blocks", "--repeats", 20) if column == "turns" else ()
        own = {"hosts": None, "within": within, "steps": 50 if turns else 28_000} | options
        return StartedRun(make_slurm(2), mnist_dir, ARM[column], *turns, **own)

    return start


def wait_for_measurement(run, column, round_=1):
    """Wait for training; in turns, for a rank that is stopped."""
    if column != "turns":
        run.wait_for_training()
        return
    stopped = lambda: turns_begin(run.lab, round_) and stopped_ranks(run.lab.hosts[1])  # noqa: E731
    wait_until(lambda: stopped() or run.process.poll() is not None, 150)
    assert run.process.poll() is None, run.process.communicate()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        pytest.param(column, kind, marks=[] if (column, kind) in QUICK else pytest.mark.faults)
        for column in ARM
        for kind in FROM_OUTSIDE
        if kind != "kill" or column == "turns"
    ],
)
def test_run_that_ends_early_names_the_reason(start_in_a_job, record_in_a_job, column, kind):
    break_it, says = FROM_OUTSIDE[kind]
    run = start_in_a_job(column)
    lab = run.lab
    finished = 1 if column == "turns" and kind == "link" else 0
    wait_for_measurement(run, column, finished + 1)
    began = time.monotonic()
    break_it(run)
    printed = run.wait()
    took = time.monotonic() - began
    assert run.process.returncode == FAILURES[kind].code, printed
    assert says in printed
    launches = read_run(lab.folder / "run").launches
    assert ("The finished part is kept" in printed) is bool(launches)
    assert len(launches) >= 2 * finished
    assert took < FAILURES[kind].bound_seconds
    record_in_a_job(FAILURES[kind], column, took)
    alive = [lab.login, lab.hosts[0]] if kind in {"link", "node"} else lab.running()
    gone_from(lab, alive, 10)
    if kind == "link":  # Slurm's own step daemon stays, until it can report
        wait_until(lambda: all("slurmstepd" in line for line in left(lab, [lab.hosts[1]])), GONE_SECONDS)


@pytest.mark.parametrize(
    "column", [pytest.param(one, marks=[] if one == "ddp" else pytest.mark.faults) for one in ARM]
)
def test_parent_killed_in_a_job_leaves_nothing_on_any_node(start_in_a_job, record_in_a_job, column):
    run = start_in_a_job(column)
    wait_for_measurement(run, column)
    began = time.monotonic()
    os.kill(parent_of(run), signal.SIGKILL)
    run.process.communicate(timeout=60)
    gone_from(run.lab, run.lab.running(), BOUND_SECONDS)
    record_in_a_job(FAILURES["parent"], column, time.monotonic() - began)


@pytest.mark.faults
@pytest.mark.parametrize("kind", IN_A_RANK)
@pytest.mark.parametrize("column", ARM)
def test_rank_that_fails_in_a_job_is_named(start_in_a_job, record_in_a_job, column, kind):
    run = start_in_a_job(column, fault=a_fault(kind))
    printed = run.wait()
    took = run.seconds_since_the_fault()
    assert run.process.returncode == FAILURES[kind].code, printed
    assert IN_A_RANK[kind] in printed
    assert took < BOUND_SECONDS
    record_in_a_job(FAILURES[kind], column, took)
    gone_from(run.lab, run.lab.running(), 10)


@pytest.mark.faults
def test_node_silent_from_the_start_is_named(start_in_a_job, record_in_a_job):
    until = ["sh", "-c", 'until [ -e /run/lab/go ]; do sleep 0.1; done; exec "$@"', "sh"]
    run = start_in_a_job("turns", within=[*IN_A_JOB, *until])
    lab = run.lab
    wait_until(lambda: lab.login.run(["squeue", "-h", "-o", "%t"]).stdout == "R\n", 20)
    lab.hosts[1].drop_packets()
    (lab.folder / "go").touch()
    began = time.monotonic()
    printed = run.wait()
    took = time.monotonic() - began
    assert run.process.returncode == FAILURES["silent"].code, printed
    assert "Host n2 (Slurm job 1)" in printed
    assert took < BOUND_SECONDS
    assert not (lab.folder / "run").exists()
    record_in_a_job(FAILURES["silent"], "turns", took)
    gone_from(lab, [lab.login, lab.hosts[0]], 10)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["scancel", "time limit"])
def test_submitted_run_that_slurm_ends_names_the_reason(start_in_a_job, kind):
    """It runs within the batch step, and keeps its first round."""
    break_it, says = FROM_OUTSIDE[kind]
    run = start_in_a_job("turns", within=["sh", "-ec", SUBMIT, "sh"])
    wait_for_measurement(run, "turns", 2)
    began = time.monotonic()
    break_it(run)
    printed, errors = run.process.communicate(timeout=150)
    assert run.process.returncode == 13, printed + errors
    printed = " ".join(printed.split())
    assert says in printed
    assert "The finished part is kept" in printed
    assert len(read_run(run.lab.folder / "run").launches) >= 2
    assert time.monotonic() - began < FAILURES[kind].bound_seconds + 5
    gone_from(run.lab, run.lab.running(), 10)
