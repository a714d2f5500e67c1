"""Test the fixture that finds processes left by a launch."""

from __future__ import annotations

import os
import subprocess
import sys

from backends.launchers.request import MARKER


def test_find_launched_finds_a_process_by_the_name_of_its_launch(find_launched):
    name = f"forgotten-{os.getpid()}"
    command = [sys.executable, "-c", "print('here', flush=True); input()"]
    with subprocess.Popen(
        command,
        env=os.environ | {MARKER: f"{name}/3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        assert [found.split()[0] for found in find_launched([name])] == [str(process.pid)]
        assert find_launched([name[:-1]]) == []
        process.communicate("\n", timeout=10)
    assert find_launched([name]) == []
