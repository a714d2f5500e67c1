"""Failures while a rank waits for its turn."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from compare.schema.store import read_run
from tests.comparing import compare, inject
from tests.faults.started import KILLED, kill
from tests.waiting import wait_until

BOUND_SECONDS = 10.0
LAUNCHER = {"ddp": "torchrun", "horovod": "horovodrun-gloo"}
TURNS = ("--interleave", "blocks", "--steps", "200", "--repeats", "2")
HERE = [pytest.param("horovod"), pytest.param("ddp", marks=pytest.mark.rest)]


@pytest.fixture
def waiting(start):
    """Start a cohort, and return it when an arm waits."""

    def begin(arms, waits, *arguments):
        run = start(arms, *TURNS, *arguments)
        wait_until(lambda: stage(run, waits) == "turn" and stage(run, other(arms, waits)) == "train", 90)
        return run

    return begin


def other(arms, waits):
    return next(arm for arm in arms.split(",") if arm != waits)


def number(run, arm):
    """Return the number of an arm's launch in the first round."""
    (folder,) = run.directory.glob(f"launches/0[1-4]-{arm}")
    return int(folder.name[:2])


def stage(run, arm):
    """Return the latest stage of the first rank of an arm."""
    files = list(run.directory.glob(f"launches/0[1-4]-{arm}/rank-0.progress"))
    if not files or not (lines := files[0].read_text().splitlines()):
        return ""
    return stage_in(lines[-1])


def stage_in(line):
    return line.partition('"stage":"')[2].partition('"')[0]


def assert_all_gone(run, since):
    wait_until(lambda: not run.processes() and not run.scratch(), BOUND_SECONDS - (time.time() - since))
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("arm", HERE)
def test_a_rank_killed_while_it_waits_is_named(waiting, record, arm):
    run = waiting("manual,horovod" if arm == "horovod" else "ddp,horovod", arm)
    at = kill(run.rank(launch=number(run, arm)))
    printed, took = run.wait(at)
    assert run.process.returncode == 6, printed
    assert f"{arm}, round 1: rank 1 on" in printed
    assert KILLED in printed
    assert took < BOUND_SECONDS
    assert_all_gone(run, at)
    record("rank that waits for its turn: kill -9", LAUNCHER[arm], run.process.returncode, printed, took)


@pytest.mark.faults
@pytest.mark.parametrize(
    "victim", ["compare", *(pytest.param(one, marks=pytest.mark.rest) for one in ("launcher", "agent"))]
)
def test_nothing_is_left_of_a_cohort_without(waiting, record, victim):
    """The process is killed while ranks of Horovod are stopped."""
    run = waiting("manual,horovod", "horovod")
    mark = run.directory.resolve() / "launches"
    (folder,) = mark.glob("0[1-4]-horovod")
    killed = {
        "compare": lambda: psutil.Process(run.process.pid),
        "agent": lambda: agent_of(run, folder),
        "launcher": lambda: launcher_of(run, folder),
    }[victim]()
    at = kill(killed)
    printed, took = run.wait(at)
    assert took < BOUND_SECONDS
    assert run.process.returncode == {"compare": -signal.SIGKILL, "agent": 9, "launcher": 6}[victim]
    assert_all_gone(run, at)
    assert not read_run(run.directory).complete
    fault = f"{victim}, while ranks wait for their turns: kill -9"
    record(fault, LAUNCHER["horovod"], run.process.returncode, printed, took)


def agent_of(run, folder):
    """Return the agent's process of a launch."""
    return launcher_of(run, folder).parent()


def launcher_of(run, folder):
    children = psutil.Process(run.process.pid).children(recursive=True)
    return next(
        child
        for child in children
        if "compare.launch.agent" in " ".join(child.parent().cmdline())
        and child.environ().get("RINGSIDE_LAUNCH") == str(folder)
    )


@pytest.mark.faults
@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.rest), 2])
def test_ctrl_c_once_or_twice_ends_a_cohort_in_which_ranks_are_stopped(waiting, record, times):
    run = waiting("manual,horovod", "horovod")
    at = kill(run.process, signal.SIGINT)
    if times == 2:
        time.sleep(0.1)
        kill(run.process, signal.SIGINT)
    printed, took = run.wait(at)
    assert run.process.returncode == 130
    assert_all_gone(run, at)
    fault = "Ctrl-C, while ranks wait for their turns"
    record(fault, LAUNCHER["horovod"], run.process.returncode, printed, took)


@pytest.mark.faults
def test_ranks_are_gone_when_compare_is_suspended(waiting):
    run = waiting("manual,horovod", "horovod")
    at = kill(run.process, signal.SIGSTOP)
    assert_all_gone(run, at)
    os.kill(run.process.pid, signal.SIGCONT)
    printed, _ = run.wait(at)
    assert run.process.returncode == 6
    assert "because this program sent them no messages" in printed
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.rest
def test_suspended_cohort_begins_again(waiting):
    """Ctrl-Z ends all ranks; ``fg`` launches the round again, as it does a launch by itself."""
    run = waiting("manual,horovod", "horovod", "--repeats", "1")
    at = kill(run.process, signal.SIGTSTP)
    parent = psutil.Process(run.process.pid)
    wait_until(lambda: not run.processes() and parent.status() == psutil.STATUS_STOPPED, BOUND_SECONDS)
    os.kill(run.process.pid, signal.SIGCONT)
    printed, _ = run.wait(at)
    assert run.process.returncode == 0, printed
    assert "round 1 begins again: this program was suspended (Ctrl-Z)" in printed
    assert [launch.round for launch in read_run(run.directory).launches] == [1, 1]


@pytest.mark.faults
@pytest.mark.rest
def test_finished_cohorts_are_kept(start):
    """A failure and Ctrl-C are handled in one place, and ``.ci/run`` tries the latter (test_endings.py)."""
    run = start("manual,ddp", *TURNS)
    wait_until(lambda: list(run.directory.glob("launches/04-*/rank-1.progress")), 120)
    at = kill(run.rank(launch=4))
    printed, _ = run.wait(at)
    assert run.process.returncode == 6
    assert "ringside report" in printed
    kept = read_run(run.directory)
    assert (len(kept.launches), kept.failure.round) == (2, 2)
    assert compare("report", run.directory).returncode == 0


REASONS = {
    "memory": [
        "2 arms side by side need more memory than host",
        "GiB. 0.0 GiB is left, and another may need",
    ],
    "stop": ["A rank cannot be paused while it waits for its turn.", "Operation not permitted."],
}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("why", "arms"),
    [
        pytest.param("memory", "horovod,manual", marks=pytest.mark.rest),
        ("stop", "horovod,manual"),
        pytest.param("stop", "manual,horovod", marks=pytest.mark.rest),
    ],
)
def test_auto_runs_launches_one_by_one_and_says_why(tmp_path, data, requires_backend, why, arms):
    """The arm that cannot be stopped comes first or second; memory is what turns are refused for below."""
    requires_backend("horovod")
    done = run_refused(tmp_path, data, why, "auto", arms)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert run.interleaved.mode == "launches"
    assert [launch.ranks[0].blocks[0].turn for launch in run.launches] == [0, 0]
    for words in REASONS[why]:
        assert words in run.interleaved.why
        assert words in " ".join(done.stdout.split())
    headline = done.stdout[: done.stdout.index("\n arm ")]
    assert "one launch after another" in " ".join(headline.split())
    assert len(list((tmp_path / "run" / "launches").iterdir())) == 2


@pytest.mark.faults
def test_turns_that_are_not_possible_are_refused(tmp_path, data, requires_backend):
    requires_backend("horovod")
    done = run_refused(tmp_path, data, "memory", "blocks")
    assert done.returncode == 12
    for words in [*REASONS["memory"], "--interleave launches"]:
        assert words in " ".join(done.stderr.split())


def run_refused(folder, data, why, mode, arms="horovod,manual"):
    """Run arms where the agent finds a reason against turns."""
    environment = inject("faults/refusing", folder / "injected", why)
    return compare(
        *("run", "--backend", arms, "--no-control", "--steps", "40:warmup=5", "--repeats", 1),
        *("--interleave", f"{mode}:reruns=0", *data, "--output", folder / "run"),
        environment=environment,
    )
