"""The parts of the set-up, as the Makefile carries them out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import set_up
from tests.comparing import ROOT


@pytest.fixture
def run(tmp_path):
    """Run the script with a Python that has no packages, where no part is done."""

    def script(*words):
        command = [sys.executable, "-I", "-S", ROOT / "tests" / "set_up.py", *words]
        return subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)

    return script


def test_part_prints_its_time_and_what_is_left_without_any_package(run):
    done = run("packages", "packages horovod comparison", sys.executable, "-c", "print('torch', flush=True)")
    first, between, last = done.stdout.splitlines()
    assert first == "[packages] about 0:40 on two cores; downloads come on top"
    assert between == "torch"
    assert re.fullmatch(r"\[packages\] took 0:0\d; left: \d:\d\d for horovod, \d:\d\d for comparison", last)


def test_part_that_fails_returns_its_status_and_no_time(run):
    done = run("mpich", "packages mpich", sys.executable, "-c", "raise SystemExit(4)")
    assert done.returncode == 4
    assert "took" not in done.stdout


@pytest.mark.parametrize(
    ("done", "left"),
    [((), "0:10 for mpich"), ((".tools",), "0:10 for mpich"), ((".tools", ".mpich"), "nothing")],
)
def test_parts_that_are_done_are_not_left(tmp_path, done, left):
    for name in done:
        (tmp_path / name).touch()
    parts = ["packages", "tools", "mpich"] if done else ["packages", "mpich"]
    assert set_up.end("packages", parts, 65, tmp_path) == f"[packages] took 1:05; left: {left}"


# ---- what make would do ----


@pytest.fixture
def plan(tmp_path):
    """Return the commands of a target where some parts are done."""
    if shutil.which("make") is None:
        pytest.skip("no make here")
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    environment = {name: value for name, value in os.environ.items() if name not in outer}

    def commands(target: str, *done: str) -> str:
        for name in ("bin/python", *done):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.open("a").close()  # its time stays if it is there
        command = ["make", "--dry-run", f"VENV={tmp_path}", target]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    return commands


def test_demo_installs_what_its_run_needs_and_no_more(plan):
    demo = plan("demo")
    assert "-e '.[mpi]'" in demo
    assert "ringside setup horovod" in demo
    for other in ("dev]", "lightning", "setup mpich", "[tools]", "compileall"):
        assert other not in demo


@pytest.mark.parametrize("target", ["setup", "lint", "test-untimed"])
def test_after_the_demo_the_other_targets_add_what_is_missing(plan, target):
    commands = plan(target, ".packages", ".horovod")
    assert "lightning,dev]'" in commands
    assert "ringside setup mpich" in commands
    assert "ringside setup horovod" not in commands
    assert "pip install" not in plan(target, ".tools", ".mpich")
