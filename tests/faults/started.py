"""A command with a fault, and the traces that it may leave."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from backends.launchers.request import MARKER
from tests.comparing import inject
from tests.waiting import wait_until

# Long enough to import torch on a busy machine, which is one stage.
STALL_SECONDS = 15.0
DEATH_BOUND_SECONDS = 10.0
HANG_BOUND_SECONDS = STALL_SECONDS + 10.0

LAUNCHERS = {
    "torchrun": "ddp",
    "horovodrun-gloo": "horovod",
    "horovodrun-mpi": "horovod:controller=mpi",
    "mpirun": "mpi",
}
# Files of launchers and libraries outside the folders that are made for them.
TRACES = ("ompi.*", "torchelastic_*", "pmix*", "horovod*", "mpich*")
IN_MEMORY = ("*vader*", "*ompi*", "torch_*", "gloo*", "sem.*", "mpich_*", "ucx_*")
MEMORY = Path("/dev/shm")  # noqa: S108 -- the real one
TRACES_SECONDS = 10.0
"""Maximum time until a trace is gone."""
OTHERS_SECONDS = 60.0
"""The same where other tests use the same shared memory.

A stopped horovodrun keeps semaphores that no process has mapped, and a tracker removes them at its end.
"""
IN_OWN_MEMORY = ["unshare", "--mount", "sh", "-c", f'mount --bind "$0" {MEMORY} && exec "$@"']
"""Start of a command with a folder as shared memory; needs root."""
MPICH = "mpi:library=mpich"
"""Its launcher is in no table of failures over hosts."""
ALL_LAUNCHERS = (*LAUNCHERS, MPICH)
QUICK = {("torchrun", "raise"), ("mpirun", "kill")}
KILLED = "It was killed by SIGKILL (kill -9, or out of memory)."
UNRECORDED = "Its witness (the parent process of the rank) was killed, and the rank with it."
EARLY = "before its first progress record"
BRIEFLY = ("--steps", "40:warmup=5", "--repeats", "1")


RUN = ("run", "--no-control", "--interleave", "launches:reruns=0")


def cases(kinds, *chosen):
    """Return every fault under every launcher.

    ``make test`` takes two of these pairs, and ``.ci/run`` the chosen ones too.
    """
    return [
        pytest.param(launcher, kind, marks=_marks((launcher, kind), chosen), id=f"{launcher}-{kind}")
        for launcher in ALL_LAUNCHERS
        for kind in kinds
    ]


def _marks(pair, chosen):
    if pair in QUICK:
        return []
    return [pytest.mark.faults, *([] if pair in chosen else [pytest.mark.rest])]


def by_launcher(*chosen):
    """Return all launchers; ``.ci/run`` takes the chosen ones.

    What ends a launch is the same for all of them, so one suffices there. Tests choose different ones, and
    none where another test keeps the same promise in a harder case.
    """
    return [pytest.param(one, marks=[] if one in chosen else [pytest.mark.rest]) for one in ALL_LAUNCHERS]


def in_pairs(values, *chosen):
    """Return all launchers with all values; ``.ci/run`` takes the chosen pairs."""
    return [
        pytest.param(launcher, value, marks=[] if (launcher, value) in chosen else [pytest.mark.rest])
        for value in values
        for launcher in ALL_LAUNCHERS
    ]


def a_fault(kind, rank=1):
    """Return a fault of a rank, in its training or before."""
    module = "compare.worker.watchdog" if EARLY in kind else "compare.worker.rank"
    return {"module": module, "kind": kind, "rank": rank, "step": 100}


class StartedRun:
    """A command under way, `ringside run` if no other is named."""

    def __init__(self, folder, data, arguments, fault=None, command=RUN):
        self.injected = folder / "injected"
        self.directory = folder / "run"
        self.memory = Path(tempfile.mkdtemp(prefix="test-", dir=MEMORY)) if may_mount() else MEMORY
        self.traces_before = self.traces()
        inject("faults/injected", self.injected, fault)
        self.process = subprocess.Popen(
            ([] if self.memory == MEMORY else [*IN_OWN_MEMORY, str(self.memory)])
            + [sys.executable, "-m", "compare", *command, *data]
            + ["--timeout", f"5m:stall={STALL_SECONDS}", "--output", str(self.directory), *arguments],
            env=os.environ | {"COLUMNS": "200", "PYTHONPATH": str(self.injected)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            # A shell ignores it for what it runs in the background.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )

    def wait(self, since=None):
        """Wait for the end.

        Returns:
            The messages, and the seconds since the fault or ``since``.
        """
        _, printed = self.process.communicate(timeout=120)
        ended_at = time.time()
        assert "Traceback" not in printed
        if since is None:
            injected_at = self.injected / "injected_at"
            assert injected_at.exists(), f"the run ended before the fault: {printed}"
            since = float(injected_at.read_text())
        return printed, ended_at - since

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

    def agent(self):
        """Return the agent of this machine."""
        children = psutil.Process(self.process.pid).children()
        (agent,) = [child for child in children if "compare.launch.agent" in child.cmdline()]
        return agent

    def launcher(self):
        """Return the process of the launcher."""
        (launch,) = self.agent().children()
        (launcher,) = [child for child in launch.children() if child.environ().get(MARKER)]
        return launcher

    def witness(self, rank=1, launch=1):
        """Return the witness of a rank."""
        (file,) = self.directory.glob(f"launches/{launch:02d}-*/rank-{rank}.witness")
        return psutil.Process(int(file.read_text()))

    def rank(self, rank=1, launch=1):
        """Return the process of a rank."""
        (process,) = self.witness(rank, launch).children()
        return process

    def wait_for_training(self, launch=1):
        """Wait until the ranks of a launch take timed steps."""
        wait_until(lambda: is_training(self.directory, launch), 60)

    def progress(self, rank):
        """Return all progress records of a rank of the only launch."""
        (file,) = self.directory.glob(f"launches/*/rank-{rank}.progress")
        return [json.loads(line) for line in file.read_text().splitlines()]

    def interrupt(self):
        """Press Ctrl-C, which a terminal sends to the whole group; return when."""
        os.killpg(self.process.pid, signal.SIGINT)
        return time.time()

    def results(self):
        return list(self.directory.glob("launches/*/rank-[01].json"))

    def named_file(self, printed):
        """Return the content of the file that a message names."""
        return Path(re.search(r" in (\S*/rank-1\.\w+)\.\s", printed)[1]).read_text()

    def scratch(self):
        """Return folders that the launches of this run have left behind."""
        mine = f"ringside-{self.process.pid}-*"
        return [*Path(tempfile.gettempdir()).glob(mine), *self.memory.glob(mine)]

    def assert_launched_once(self, printed):
        """A fault of the program is no reason for a second try."""
        assert "starts again" not in printed
        assert len(list((self.directory / "launches").iterdir())) == 1

    def assert_nothing_is_left(self):
        assert [p.cmdline() for p in self.processes()] == []
        assert self.scratch() == []
        self.assert_no_new_traces()

    def assert_no_new_traces(self):
        began = time.monotonic()
        while new := self.traces() - self.traces_before:
            others = self.memory == MEMORY and trackers()
            if time.monotonic() - began > (OTHERS_SECONDS if others else TRACES_SECONDS):
                break
            time.sleep(0.2)
        assert not new, f"left behind: {new}"

    def traces(self):
        """Return unused files of launchers and libraries."""
        places = ((Path(tempfile.gettempdir()), TRACES), (self.memory, IN_MEMORY))
        found = {str(path) for folder, names in places for name in names for path in folder.glob(name)}
        return (found - mapped(found)) | unused_segments()

    def end(self):
        """Kill what still runs, and remove its shared memory."""
        self.process.kill()
        self.process.communicate()
        for process in self.processes():
            process.kill()
        if self.memory != MEMORY:
            shutil.rmtree(self.memory)


def is_training(directory, launch=1):
    """Return whether both ranks of a launch take timed steps."""
    files = list(directory.glob(f"launches/{launch:02d}-*/rank-*.progress"))
    return len(files) == 2 and all('"train"' in file.read_text() for file in files)


def kill(process, number=signal.SIGKILL):
    """Send a signal, and return when."""
    process.send_signal(number)
    return time.time()


def unused_segments():
    """Return the segments of System V that no process has attached."""
    first, *rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    number, attached = first.index("shmid"), first.index("nattch")
    return {f"System V segment {row[number]}" for row in rows if row[attached] == "0"}


@functools.cache
def may_mount():
    """Return whether a run can have shared memory of its own."""
    tried = [*IN_OWN_MEMORY, str(MEMORY), "true"]
    return subprocess.run(tried, stderr=subprocess.DEVNULL, check=False).returncode == 0


def trackers():
    """Return Python's trackers of shared memory."""
    names = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [name for name in names if "multiprocessing.resource_tracker" in name]


def mapped(paths):
    """Return which of these files a process has in its memory."""
    found = set()
    for table in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = table.read_text()
            found |= {path for path in paths if path in text}
    return found
