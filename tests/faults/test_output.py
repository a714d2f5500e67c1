"""A folder that vanishes, a full disk, a taken port."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from contextlib import closing

import pytest

from compare.schema.store import read_run
from tests.faults.started import BRIEFLY, DEATH_BOUND_SECONDS, HANG_BOUND_SECONDS, by_launcher

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("launcher", by_launcher("torchrun"))
def test_output_folder_that_vanishes_is_an_error_of_output(start, launcher):
    run = start(launcher)
    run.wait_for_training()
    shutil.rmtree(run.directory)
    printed, took = run.wait(since=time.time())
    assert took < DEATH_BOUND_SECONDS
    assert run.process.returncode == 5, printed
    assert "can no longer be written" in printed
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


@pytest.mark.parametrize("launcher", by_launcher("mpirun"))
def test_disk_that_fills_is_an_error_of_output(start, small_disk, launcher):
    disk = small_disk("size=600k")
    run = start(launcher, "--output", str(disk / "run"))
    run.directory = disk / "run"
    run.wait_for_training()
    ballast = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(ballast, b"\0" * 4096):
            pass
    os.close(ballast)
    printed, took = run.wait(since=time.time())
    # A rank fails when its progress records need another page.
    assert took < HANG_BOUND_SECONDS
    assert_output_failed(run, printed)


@pytest.mark.rest
def test_disk_without_free_inodes_is_an_error_of_output(start, small_disk):
    """A rank fails only when it writes a new file: its result."""
    disk = small_disk("nr_inodes=100")
    run = start("ddp", "--steps", "1500", "--output", str(disk / "run"))
    run.directory = disk / "run"
    run.wait_for_training()
    with contextlib.suppress(OSError):
        for number in range(200):
            (disk / f"ballast-{number}").touch()
    printed, _ = run.wait(since=time.time())
    assert not run.results(), "the disk was full too late for this test"
    assert_output_failed(run, printed)


def assert_output_failed(run, printed):
    assert run.process.returncode == 5, printed
    assert "full" in printed or "No space left" in printed
    run.assert_nothing_is_left()


# The other launchers choose a port at the moment in which they open it.
def test_port_that_was_taken_is_tried_again_and_reported(start):
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        fault = {"module": "compare.launch.cluster", "port": other.getsockname()[1]}
        run = start("ddp", *BRIEFLY, fault=fault)
        shown, printed = run.process.communicate(timeout=120)
    assert run.process.returncode == 0, printed
    assert "starts again: another process took its port" in printed
    assert "launched twice" in shown
    assert read_run(run.directory).launches[0].restarted_because
    run.assert_nothing_is_left()
