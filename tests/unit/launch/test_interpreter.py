"""Test how another interpreter is asked, and how its ranks start."""

from __future__ import annotations

import re
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from compare import PACKAGE_ROOT, PROTOCOL
from compare.errors import UnavailableError, UsageError
from compare.launch import interpreter
from compare.launch.arm import LaunchFolders, launch_files, plan_launch
from compare.launch.interpreter import find_interpreter
from compare.schema.arms import parse_arm
from compare.schema.job import Job, Planned
from tests.unit.factories import MNIST, a_cluster, a_config
from tests.waiting import wait_until


def a_program(folder, text):
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(("protocol", "own"), [(PROTOCOL, True), (999, False)])
def test_interpreter_with_another_protocol_gets_this_package(monkeypatch, protocol, own):
    monkeypatch.setattr(interpreter, "PROTOCOL", protocol)
    found = find_interpreter(sys.executable)
    assert (found.executable, found.prefix) == (sys.executable, sys.prefix)
    assert (found.own_sources, Path(found.sources)) == (own, PACKAGE_ROOT)


@pytest.mark.parametrize(
    "text",
    [
        *("exit 3", "echo '{\"prefix\"'", "echo '[1, 2]'", "echo '{}'"),
        *('echo \'{"prefix": 1, "python": "3", "versions": []}\'', r"printf '\\377'"),
        "head -c 100000 /dev/zero | tr '\\0' '['",
    ],
)
def test_program_that_is_no_interpreter_is_refused(tmp_path, text):
    with pytest.raises(UnavailableError, match="did not answer"):
        find_interpreter(a_program(tmp_path, text))


CHILD = "setsid sleep 61 & echo $! >{file}; "


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CHILD + "exec yes", "more than 1 MiB"),
        (CHILD + "exec sleep 62", "within 1 s"),
        (CHILD + "exit", "no description"),
    ],
    ids=["floods", "sleeps", "leaves a child"],
)
def test_program_that_floods_or_sleeps_is_ended_with_all_that_it_started(tmp_path, monkeypatch, text, found):
    monkeypatch.setattr(interpreter, "_ANSWER_SECONDS", 1.0)
    file = tmp_path / "child"
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="did not answer") as refused:
        find_interpreter(a_program(tmp_path, text.format(file=file)))
    assert found in refused.value.found
    assert time.monotonic() - began < 10
    wait_until(lambda: not psutil.pid_exists(int(file.read_text())), 5)


def test_interpreter_without_torch_or_its_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--against"):
        find_interpreter(str(tmp_path / "python"))
    answer = '{"prefix": "/x", "python": "3.11.7", "versions": {"msgspec": "0.19", "numpy": "2.4"}}'
    with pytest.raises(UnavailableError, match="lacks torch, psutil, which every rank imports") as caught:
        find_interpreter(a_program(tmp_path, f"echo '{answer}'"))
    assert caught.value.remedy.endswith("/python -m pip install torch psutil")


def test_all_packages_that_a_rank_imports_are_asked_for():
    """A package that is forgotten here is a traceback in the middle of a gate."""
    ours = ("worker", "system", "schema", "data")
    files = [file for room in ours for file in (PACKAGE_ROOT / "compare" / room).rglob("*.py")]
    source = "\n".join(file.read_text() for file in files)
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    needed = imported - sys.stdlib_module_names - {"backends", "compare"}
    assert needed == set(interpreter._NEEDED_PACKAGES)


def test_ranks_of_a_twin_start_under_its_interpreter(tmp_path):
    other = msgspec.structs.replace(
        find_interpreter(sys.executable), executable="/old/bin/python", sources="/old/lib"
    )
    arm = msgspec.structs.replace(parse_arm("ddp"), against=other)
    planned = Planned(1, 1, arm)
    folders = LaunchFolders(a_cluster(), launch_files(tmp_path, planned))
    (command,) = plan_launch(a_config("ddp"), planned, folders, 1, partial(Job, dataset=MNIST)).commands
    assert command.argv[:3] == ("/old/bin/python", "-m", "torch.distributed.run")
    assert command.environment["PATH"].startswith("/old/bin:")
    assert command.environment["PYTHONPATH"].split(":")[0] == "/old/lib"
