"""Loading a library to look at it: nothing of that outlives who asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
# Sleeps without letting another thread run, as the start of a library may: PyDLL keeps the lock.
HANG = "import ctypes; print('hangs', flush=True); ctypes.PyDLL(None).sleep(60)"
LISTEN = "from backends import probe; probe.end_with_parent()"


def start(code, **streams):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True, **streams
    )


def test_a_library_that_hangs_is_ended_when_nobody_waits_for_it():
    alive, held = os.pipe()
    with start(f"{LISTEN}; {HANG}", stdin=alive) as process:
        assert process.stdout.readline() == "hangs\n"
        assert process.poll() is None
        os.close(held)
        assert process.wait(10) == -signal.SIGIO
    os.close(alive)


def test_who_is_left_alone_before_it_listens_does_not_begin():
    alive, held = os.pipe()
    os.close(held)
    with start(f"{LISTEN}; print('begins')", stdin=alive, stderr=subprocess.PIPE) as process:
        printed, said = process.communicate(timeout=30)
    assert (process.returncode, printed, said) == (1, "", "left alone\n")
    os.close(alive)


def test_without_a_pipe_a_library_is_looked_at_all_the_same():
    with start(f"{LISTEN}; print('begins')", stdin=subprocess.DEVNULL) as process:
        assert process.communicate(timeout=30)[0] == "begins\n"


@pytest.fixture
def hanging_mpi4py(tmp_path):
    """A library that says who loads it, and does not come back."""
    package = tmp_path / "mpi4py"
    package.mkdir()
    told = tmp_path / "pid"
    (package / "__init__.py").write_text(
        f"import os, pathlib; pathlib.Path({str(told)!r}).write_text(f'{{os.getpid()}}\\n'); {HANG}"
    )
    return tmp_path, told


def test_no_library_goes_on_loading_when_the_program_is_killed(hanging_mpi4py, tmp_path):
    path, told = hanging_mpi4py
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}", "TMPDIR": str(tmp_path)}
    with start("from compare.doctor.availability import survey; survey(['mpi'])", env=environment) as process:
        deadline = time.monotonic() + 60
        while not (told.exists() and told.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        library = psutil.Process(int(told.read_text()))
        assert library.ppid() == process.pid
        process.kill()
    psutil.wait_procs([library], timeout=10)
    assert not library.is_running() or library.status() == psutil.STATUS_ZOMBIE
    assert not list(tmp_path.glob("ringside-*"))
