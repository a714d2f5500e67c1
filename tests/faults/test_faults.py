"""Test that faults end in time, are named, and leave nothing.

`make test` runs one fault for each launcher; `make test-faults` also those marked ``faults``.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from backends.launchers.request import MARKER
from compare.schema.store import read_run

# Long enough for a busy machine to import torch, which is one stage.
STALL_SECONDS = 15.0
DEATH_BOUND_SECONDS = 10.0
HANG_BOUND_SECONDS = STALL_SECONDS + 10.0

LAUNCHERS = {"torchrun": "ddp", "horovodrun": "horovod", "mpirun": "mpi"}
# What launchers and libraries make for themselves, beside the folders that are made for them.
TRACES = {
    Path(tempfile.gettempdir()): ("ompi.*", "torchelastic_*", "pmix*", "horovod*"),
    Path("/dev/shm"): ("*vader*", "*ompi*", "torch_*", "gloo*", "sem.*"),  # noqa: S108 -- only looked at
}
# Traces are looked for again: other tests run beside this one. A launcher that they kill has a process that
# removes its semaphores a moment later.
TRACES_SECONDS = 3.0
UNSEEN = "kill before the first record"
UNHEARD = "exit 0 before the first record"
SLOW = "delay the first record"
SLOW_SECONDS = 7.0
"""Least delay; the injected one is eight seconds."""
DEATHS = {
    "raise": "RuntimeError: injected by the test",
    "kill": "killed by SIGKILL (kill -9, or out of memory)",
    UNSEEN: "killed by SIGKILL (kill -9, or out of memory)",
    "exit 0": "exited with status 0 and left no result",
    "exit 3": "exited with status 3 and left no result",
    "crash": "killed by SIGSEGV (Segmentation fault)",
    "out of memory": "memory",
}
HANGS = ("hang", "hang while loading", "hang before rendezvous", "stop")
QUICK = {("torchrun", "raise"), ("horovodrun", "hang"), ("mpirun", "kill")}

RUN = ("run", "--max-reruns", "0")
"""Noise may not take a round again here."""
BRIEFLY = ("--steps", "40", "--warmup", "5", "--repeats", "1")


def cases(kinds):
    found = []
    for launcher in LAUNCHERS:
        for kind in kinds:
            marks = [] if (launcher, kind) in QUICK else [pytest.mark.faults]
            found.append(pytest.param(launcher, kind, marks=marks, id=f"{launcher}-{kind}"))
    return found


class Started:
    """A `compare run` under way, with a fault in it."""

    def __init__(self, folder, data, arguments, fault=None):
        self.site = folder / "site"
        self.directory = folder / "run"
        self.traces_before = traces()
        shutil.copytree(Path(__file__).parent / "injected", self.site)
        if fault:
            (self.site / "fault.json").write_text(json.dumps(fault))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "compare", *RUN]
            + ["--no-control", *data]
            + ["--output", str(self.directory), "--stall", str(STALL_SECONDS), *arguments],
            env=os.environ | {"COLUMNS": "200", "PYTHONPATH": str(self.site)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that runs the tests in the background may ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )

    def injected_at(self):
        return float((self.site / "injected_at").read_text())

    def processes(self):
        mark = f"{self.directory.resolve()}/"
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARKER, "").startswith(mark) and process.status() != "zombie":
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def wait_for_training(self, launch=1):
        """Wait for timed steps of a launch, and return its processes."""
        wait_until(lambda: self._is_training(launch), 60)
        return self.processes()

    def _is_training(self, launch):
        files = list(self.directory.glob(f"launches/{launch:02d}-*/rank-*.progress"))
        return len(files) == 2 and all('"train"' in file.read_text() for file in files)

    def limits(self):
        """Return the limits of the ranks in their last records."""
        return {self.last_progress(rank)["limit_seconds"] for rank in (0, 1)}

    def last_progress(self, rank):
        """Return the last record of a rank of the only launch."""
        return self._progress(rank)[-1]

    def first_progress(self, rank):
        """Return the first record of a rank of the only launch."""
        return self._progress(rank)[0]

    def _progress(self, rank):
        (file,) = self.directory.glob(f"launches/*/rank-{rank}.progress")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def results(self):
        return list(self.directory.glob("launches/*/rank-[01].json"))

    def assert_nothing_is_left(self):
        assert [p.cmdline() for p in self.processes()] == []
        assert self.scratch() == []
        self.assert_no_new_traces()

    def assert_no_new_traces(self):
        deadline = time.monotonic() + TRACES_SECONDS
        while (new := traces() - self.traces_before) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not new

    def assert_launched_once(self, output):
        """A fault of the program's is no reason to try again."""
        assert "starts again" not in output
        assert len(list((self.directory / "launches").iterdir())) == 1

    def log_of_rank_1(self):
        (log,) = self.directory.glob("launches/*/rank-1.log")
        return log.read_text()

    def scratch(self):
        """Folders that the launches of this run have left lying about."""
        mine = f"ringside-{self.process.pid}-*"
        return [*Path(tempfile.gettempdir()).glob(mine), *Path("/dev/shm").glob(mine)]  # noqa: S108


def traces():
    """Return what launchers and libraries left, and no process uses."""
    found = {str(path) for folder, names in TRACES.items() for name in names for path in folder.glob(name)}
    segments = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    number, attached = segments[0].index("shmid"), segments[0].index("nattch")
    unused = {f"System V segment {segment[number]}" for segment in segments[1:] if segment[attached] == "0"}
    return unused | (found - mapped(found))


def mapped(paths):
    """Which of these files a process has in its memory."""
    found = set()
    for table in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = table.read_text()
            found |= {path for path in paths if path in text}
    return found


@pytest.fixture(scope="session")
def data(any_data):
    dataset, folder = any_data
    return ["--dataset", dataset, "--data-dir", str(folder)]


@pytest.fixture
def start(tmp_path, data, requires_backend):
    started = []

    def begin(backend, *arguments, fault=None):
        requires_backend(backend.partition(":")[0])
        steps = [] if {"--epochs", "--steps"} & set(arguments) else ["--epochs", "60"]
        started.append(Started(tmp_path, data, ["--backend", backend, *steps, *arguments], fault))
        return started[0]

    yield begin
    for run in started:
        run.process.kill()
        run.process.communicate()
        for process in run.processes():
            process.kill()


def a_fault(kind, rank=1):
    module = "compare.worker.watchdog" if kind in {UNSEEN, UNHEARD, SLOW} else "compare.worker.rank"
    return {"module": module, "kind": kind, "rank": rank, "step": 100}


@pytest.mark.parametrize(("launcher", "kind"), cases(DEATHS))
def test_a_rank_that_dies_is_named_and_nothing_outlives_it(start, launcher, kind):
    run = start(LAUNCHERS[launcher], fault=a_fault(kind))
    _, output = run.process.communicate(timeout=90)
    took = time.time() - run.injected_at()
    assert run.process.returncode == 6, output
    assert took < DEATH_BOUND_SECONDS
    assert ": rank 1 on" in output
    assert DEATHS[kind] in output
    assert "Traceback" not in output
    if kind in {"raise", "crash", "out of memory"}:
        place = "ctypes/__init__.py:" if kind == "crash" else "sitecustomize.py:"
        assert place in output, "the place of the failure is named"
        assert place.rstrip(":") in run.log_of_rank_1()
    if kind in {"raise", "out of memory"}:
        assert "Traceback (most recent call last)" in run.log_of_rank_1()
    run.assert_launched_once(output)
    assert not read_run(run.directory).complete
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["kill", "exit 0"])
def test_who_dies_is_named_where_others_sleep_in_shared_memory(start, kind):
    run = start("manual:mode=shared_memory", fault=a_fault(kind))
    _, output = run.process.communicate(timeout=90)
    assert time.time() - run.injected_at() < DEATH_BOUND_SECONDS
    assert run.process.returncode == 6, output
    assert ": rank 1 on" in output
    assert DEATHS[kind] in output
    run.assert_launched_once(output)
    run.assert_nothing_is_left()


@pytest.mark.parametrize(("launcher", "kind"), cases(HANGS))
def test_a_rank_that_hangs_is_named_and_ended(start, launcher, kind):
    run = start(LAUNCHERS[launcher], fault=a_fault(kind))
    _, output = run.process.communicate(timeout=120)
    took = time.time() - run.injected_at()
    assert run.process.returncode == 7, output
    assert took < HANG_BOUND_SECONDS
    assert ": rank 1 on" in output, output
    assert "made no progress for 15 s" in output
    if kind == "stop":
        assert "It was stopped (SIGSTOP)" in output
    else:
        assert "sitecustomize.py:" in output, "the place where it hangs is named"
        assert 'sitecustomize.py", line' in run.log_of_rank_1()
    run.assert_launched_once(output)
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_that_exits_with_0_before_its_first_record_is_named(start, launcher):
    assert_early_exit_is_named(start(LAUNCHERS[launcher], fault=a_fault(UNHEARD)))


@pytest.mark.faults
def test_rank_that_exits_with_0_is_named_where_horovodrun_calls_mpirun(start, requires_backend):
    requires_backend("horovod", controller="mpi")
    assert_early_exit_is_named(start("horovod:controller=mpi", fault=a_fault(UNHEARD)))


def assert_early_exit_is_named(run):
    _, output = run.process.communicate(timeout=90)
    took = time.time() - run.injected_at()
    print(f"from injection to exit: {took:.1f} s")
    assert run.process.returncode == 6, output
    assert took < DEATH_BOUND_SECONDS
    assert ": rank 1 on" in output, output
    assert "exited with status 0 and left no result" in output
    assert "It wrote no progress record." in output
    assert "It has no log" in output
    assert "Traceback" not in output
    run.assert_launched_once(output)
    assert not read_run(run.directory).complete
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_with_a_late_first_record_is_not_taken_for_dead(start, launcher):
    assert_delay_is_accepted(start(LAUNCHERS[launcher], *BRIEFLY, fault=a_fault(SLOW)))


@pytest.mark.faults
def test_rank_that_its_launcher_starts_late_is_not_taken_for_dead(start):
    """horovodrun has a Python process between itself and a rank."""
    fault = a_fault(SLOW) | {"module": "horovod.runner.common.util.safe_shell_exec"}
    assert_delay_is_accepted(start("horovod", *BRIEFLY, fault=fault))


def assert_delay_is_accepted(run):
    _, output = run.process.communicate(timeout=120)
    assert run.process.returncode == 0, output
    (first, other) = (run.first_progress(rank)["at"] for rank in (0, 1))
    assert abs(other - first) > SLOW_SECONDS, "no rank was late"
    run.assert_launched_once(output)
    assert read_run(run.directory).complete
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_in_different_collectives_are_all_named(start, launcher):
    run = start(LAUNCHERS[launcher], fault=a_fault("hang in a collective"))
    _, output = run.process.communicate(timeout=120)
    assert time.time() - run.injected_at() < HANG_BOUND_SECONDS
    assert run.process.returncode == 7, output
    assert "all ranks waited for each other for 15 s" in output
    assert "rank 1 on" in output
    assert "sitecustomize.py:" in output.partition("rank 1 on")[2]
    assert "/backends/" in output.partition("rank 0 on")[2].partition("rank 1 on")[0]
    run.assert_launched_once(output)
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("model", ["mlp", "wide"])
def test_rank_that_hangs_in_shared_memory_is_named_in_time(start, model):
    fault = a_fault("hang") | {"step": 8}
    run = start("manual:mode=shared_memory", "--model", model, "--warmup", "3", fault=fault)
    _, output = run.process.communicate(timeout=120)
    assert time.time() - run.injected_at() < HANG_BOUND_SECONDS
    assert run.process.returncode == 7, output
    assert ": rank 1 on" in output, output
    assert "sitecustomize.py:" in output
    assert run.limits() == {STALL_SECONDS}, "no block of steps is given more time than a rank may be silent"
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_that_is_killed_takes_its_ranks_along(start, launcher):
    run = start(LAUNCHERS[launcher])
    run.wait_for_training()
    victim, *_ = launchers_of(run)
    victim.kill()
    killed_at = time.time()
    _, output = run.process.communicate(timeout=60)
    assert time.time() - killed_at < DEATH_BOUND_SECONDS
    assert run.process.returncode == 6, output
    assert "the launcher was killed (signal 9)" in output
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_do_not_outlive_a_parent_that_is_killed(start, launcher):
    run = start(LAUNCHERS[launcher])
    assert len(run.wait_for_training()) >= 3
    run.process.kill()
    run.process.communicate()
    wait_until(lambda: not run.processes() and run.scratch() == [], DEATH_BOUND_SECONDS)
    run.assert_no_new_traces()
    assert not read_run(run.directory).complete


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_agent_killed_ends_the_launch_and_leaves_nothing(start, launcher):
    run = start(LAUNCHERS[launcher])
    run.wait_for_training()
    (agent,) = agents_of(run)
    agent.kill()
    killed_at = time.time()
    _, output = run.process.communicate(timeout=60)
    assert time.time() - killed_at < DEATH_BOUND_SECONDS
    assert run.process.returncode == 9, output
    assert "Host localhost" in output
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_parent_suspended_ends_the_launch_and_says_why(start, launcher):
    run = start(LAUNCHERS[launcher])
    run.wait_for_training()
    run.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not run.processes() and run.scratch() == [], DEATH_BOUND_SECONDS)
    run.process.send_signal(signal.SIGCONT)
    _, output = run.process.communicate(timeout=30)
    assert run.process.returncode == 6, output
    assert "this program sent no messages" in output
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nothing_outlives_a_parent_that_is_killed_when_its_ranks_are_done(start, launcher):
    """No rank is left then whose lease could run out."""
    run = start(LAUNCHERS[launcher], *BRIEFLY)
    wait_until(lambda: len(run.results()) == 2, 60)
    run.process.kill()
    run.process.communicate()
    wait_until(lambda: not run.processes() and run.scratch() == [], DEATH_BOUND_SECONDS)
    run.assert_no_new_traces()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", ["torchrun", "horovodrun"])  # under mpirun ranks do not end without it
def test_a_launcher_that_does_not_end_is_ended_when_its_ranks_are_done(start, launcher):
    run = start(LAUNCHERS[launcher], "--steps", "2000", "--repeats", "1")
    run.wait_for_training()
    (stopped,) = [process for process in launchers_of(run) if launcher in " ".join(process.cmdline())]
    stopped.suspend()
    wait_until(lambda: len(run.results()) == 2, 60)
    done_at = time.time()
    _, output = run.process.communicate(timeout=60)
    assert time.time() - done_at <= HANG_BOUND_SECONDS
    assert run.process.returncode == 7
    assert "its ranks are done, but its launcher did not end" in output
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_once_or_twice_ends_everything(start, launcher, times):
    run = start(LAUNCHERS[launcher])
    run.wait_for_training()
    for _ in range(times):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    interrupted_at = time.time()
    _, output = run.process.communicate(timeout=60)
    assert time.time() - interrupted_at < DEATH_BOUND_SECONDS
    assert run.process.returncode == 130, output
    assert "Traceback" not in output
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_finished_launches_are_kept_when_a_later_one_fails(start, launcher):
    run = start(LAUNCHERS[launcher], "--epochs", "1", "--repeats", "20")
    wait_until(lambda: list(run.directory.glob("launches/03-*/rank-1.progress")), 180)
    run.wait_for_training(launch=3)
    (witness,) = run.directory.glob("launches/03-*/rank-1.witness")
    (rank,) = psutil.Process(int(witness.read_text())).children()
    rank.kill()
    killed_at = time.time()
    _, output = run.process.communicate(timeout=60)
    assert time.time() - killed_at < DEATH_BOUND_SECONDS
    assert run.process.returncode == 6, output
    assert ": rank 1 on" in output, output
    assert len(read_run(run.directory).launches) >= 2
    run.assert_nothing_is_left()


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_output_folder_that_vanishes_is_an_error_of_output(start, launcher):
    run = start(LAUNCHERS[launcher])
    run.wait_for_training()
    shutil.rmtree(run.directory)
    vanished_at = time.time()
    _, output = run.process.communicate(timeout=60)
    assert time.time() - vanished_at < DEATH_BOUND_SECONDS
    assert run.process.returncode == 5, output
    assert "can no longer be written" in output
    assert "Traceback" not in output
    run.assert_nothing_is_left()


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system that is soon full."""
    folder = tmp_path / "disk"

    def mount(limit):
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", limit, "tmpfs", str(folder)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounted.returncode:
            folder.rmdir()
            pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
        return folder

    yield mount
    if folder.exists():
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.faults
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_disk_that_fills_is_an_error_of_output(start, small_disk, launcher):
    disk = small_disk("size=600k")
    run = start(LAUNCHERS[launcher], "--output", str(disk / "run"))
    run.directory = disk / "run"
    run.wait_for_training()
    ballast = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(ballast, b"\0" * 4096):
            pass
    os.close(ballast)
    filled_at = time.time()
    _, output = run.process.communicate(timeout=60)
    assert time.time() - filled_at < DEATH_BOUND_SECONDS
    assert_output_failed(run, output)


@pytest.mark.faults
def test_a_disk_that_takes_no_more_files_is_an_error_of_output(start, small_disk):
    """The first file that fails is the result of a rank."""
    disk = small_disk("nr_inodes=100")
    run = start("ddp", "--steps", "1500", "--output", str(disk / "run"))
    run.directory = disk / "run"
    run.wait_for_training()
    with contextlib.suppress(OSError):
        for number in range(200):
            (disk / f"ballast-{number}").touch()
    _, output = run.process.communicate(timeout=90)
    assert not run.results(), "the disk was full too late for this test"
    assert_output_failed(run, output)


def assert_output_failed(run, output):
    assert run.process.returncode == 5, output
    assert "full" in output or "No space left" in output
    assert "Traceback" not in output
    run.assert_nothing_is_left()


# Other launchers choose their ports at the moment they open them.
@pytest.mark.faults
def test_port_taken_meanwhile_is_tried_again(start):
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        fault = {"module": "compare.launch.cluster", "port": other.getsockname()[1]}
        run = start("ddp", "--epochs", "1", "--repeats", "1", fault=fault)
        shown, output = run.process.communicate(timeout=120)
    assert run.process.returncode == 0, output
    assert "starts again: another process took its port" in output
    assert "launched twice" in shown
    assert read_run(run.directory).launches[0].restarted_because
    run.assert_nothing_is_left()


def launchers_of(run):
    """The processes that the agent of a run has started."""
    (agent,) = agents_of(run)
    return [child for child in agent.children() if child.environ().get(MARKER)]


def agents_of(run):
    children = psutil.Process(run.process.pid).children()
    return [child for child in children if "compare.launch.agent" in child.cmdline()]


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.05)
