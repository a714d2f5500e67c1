"""A launch that is ended from outside leaves nothing."""

import json
import signal
import time

import psutil
import pytest

from compare.schema.store import read_run
from tests.comparing import compare
from tests.faults.started import (
    BRIEFLY,
    DEATH_BOUND_SECONDS,
    HANG_BOUND_SECONDS,
    by_launcher,
    in_pairs,
    kill,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("launcher", by_launcher("horovodrun-gloo"))
def test_launcher_killed_takes_its_ranks_along(start, record, launcher):
    run = start(launcher)
    run.wait_for_training()
    printed = ended(run, kill(run.launcher()), 6, record, "launcher: kill -9", launcher)
    assert "the launcher was killed (signal 9)" in printed


@pytest.mark.parametrize("launcher", by_launcher("torchrun"))
def test_agent_killed_ends_the_launch(start, record, launcher):
    run = start(launcher)
    run.wait_for_training()
    assert "Host localhost" in ended(run, kill(run.agent()), 9, record, "agent: kill -9", launcher)


def ended(run, since, code, record=lambda *_: None, fault="", launcher=""):
    """Require that it ends in time with a code and leaves nothing."""
    printed, took = run.wait(since=since)
    assert took < DEATH_BOUND_SECONDS
    assert run.process.returncode == code, printed
    run.assert_nothing_is_left()
    record(fault, launcher, code, printed, took)
    return printed


# `.ci/run` suspends and kills the parent of a cohort, some of whose ranks are stopped (test_cohorts.py).
@pytest.mark.parametrize("launcher", by_launcher())
def test_parent_suspended_ends_the_launch_and_reports_why(start, launcher):
    run = start(launcher)
    run.wait_for_training()
    run.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not run.processes() and run.scratch() == [], DEATH_BOUND_SECONDS)
    run.process.send_signal(signal.SIGCONT)
    printed, _ = run.wait(since=time.time())
    assert run.process.returncode == 6, printed
    assert "this program sent them no messages" in printed
    run.assert_nothing_is_left()


@pytest.mark.parametrize("launcher", by_launcher("mpirun"))
def test_suspended_launch_begins_again(start, launcher):
    """Ctrl-Z ends all ranks; ``fg`` launches the arm again."""
    run = start(launcher, *BRIEFLY)
    run.wait_for_training()
    run.process.send_signal(signal.SIGTSTP)
    parent = psutil.Process(run.process.pid)
    wait_until(lambda: not run.processes() and parent.status() == psutil.STATUS_STOPPED, DEATH_BOUND_SECONDS)
    run.process.send_signal(signal.SIGCONT)
    printed, _ = run.wait(since=time.time())
    assert run.process.returncode == 0, printed
    assert "starts again: this program was suspended (Ctrl-Z)" in printed
    assert read_run(run.directory).complete
    run.assert_nothing_is_left()


@pytest.mark.parametrize("launcher", by_launcher())
def test_parent_killed_leaves_nothing(start, record, launcher):
    run = start(launcher)
    run.wait_for_training()
    assert len(run.processes()) >= 3
    took = killed_and_gone(run)
    assert not read_run(run.directory).complete
    record("`ringside`: kill -9, until nothing is left", launcher, -signal.SIGKILL, "", took)


@pytest.mark.parametrize("launcher", by_launcher())
def test_parent_killed_after_its_ranks_leaves_nothing(start, launcher):
    """No rank is left then whose lease could expire."""
    run = start(launcher, *BRIEFLY)
    wait_until(lambda: len(run.results()) == 2, 60)
    killed_and_gone(run)


def killed_and_gone(run):
    killed_at = kill(run.process)
    run.process.communicate()
    wait_until(lambda: not run.processes() and run.scratch() == [], DEATH_BOUND_SECONDS)
    took = time.time() - killed_at
    run.assert_no_new_traces()
    return took


@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("horovodrun-gloo", marks=pytest.mark.rest)]
)  # mpirun holds up its ranks' exit
def test_launcher_that_outlives_its_ranks_is_ended(start, launcher):
    run = start(launcher, "--steps", "1000", "--repeats", "1")
    run.wait_for_training()
    run.launcher().suspend()
    wait_until(lambda: len(run.results()) == 2, 60)
    printed, took = run.wait(since=time.time())
    assert took <= HANG_BOUND_SECONDS
    assert run.process.returncode == 7
    assert "its ranks are done, but its launcher did not end" in printed
    run.assert_nothing_is_left()


# `.ci/run` does both below and in test_cohorts.py, where something was finished or ranks are stopped.
@pytest.mark.parametrize(("launcher", "times"), in_pairs((1, 2)))
def test_ctrl_c_once_or_twice_ends_everything(start, record, launcher, times):
    run = start(launcher)
    run.wait_for_training()
    for _ in range(times):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    ended(run, time.time(), 130, record, f"Ctrl-C, {'once' if times == 1 else 'twice'}", launcher)


OTHER_COMMANDS = {
    "verify": ("--backend", "ddp,manual"),
    "collectives": ("--group", "gloo,shared_memory", "-np", "2", "-e", "64K"),
    "scale": (
        "--backend",
        "ddp",
        "-np",
        "1,2",
        "--no-control",
        "--repeats",
        "2",
        "--interleave",
        "auto:reruns=0",
    ),
}


@pytest.mark.parametrize(
    "command",
    [pytest.param(one, marks=[pytest.mark.rest] if one == "verify" else []) for one in OTHER_COMMANDS],
)
def test_ctrl_c_keeps_and_exports_what_another_command_finished(begin, data, tmp_path, command):
    """It comes in the second launch, to every process of the terminal."""
    export = tmp_path / "kept.json"
    own = [] if command == "collectives" else data
    run = begin(own, *OTHER_COMMANDS[command], "--export", export, command=[command])
    wait_until(lambda: len(list(run.directory.rglob("rank-0.progress"))) == 2, 120)
    printed = ended(run, run.interrupt(), 130)
    assert "Interrupted" in printed
    assert "The finished part is kept" in printed
    assert str(run.directory) in printed
    exported = json.loads(export.read_text())
    kept = exported["runs"][0] if command == "scale" else exported["run"]
    assert (len(kept["launches"]), kept["complete"]) == (1, False)


@pytest.mark.parametrize("launcher", by_launcher("mpirun"))
def test_launches_that_finished_before_ctrl_c_are_kept(start, launcher):
    run = start(launcher, "--steps", "1000", "--repeats", "20")
    wait_until(lambda: list(run.directory.glob("launches/02-*/rank-1.progress")), 180)
    run.wait_for_training(launch=2)
    printed = ended(run, kill(run.process, signal.SIGINT), 130)
    assert "ringside report" in printed
    kept = read_run(run.directory)
    assert not kept.complete
    assert len(kept.launches) == 1
    shown = compare("report", run.directory)
    assert (shown.returncode, "INCOMPLETE" in shown.stdout) == (0, True)
