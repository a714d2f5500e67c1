"""An arm that another package adds, by its entry point."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.comparing import ROOT, compare


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the example's package into a folder of its own; return the environment that has it."""
    folder = tmp_path_factory.mktemp("outside")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    source = shutil.copytree(ROOT / "examples" / "backend", folder / "source")
    done = subprocess.run(
        [*command, "--target", folder / "packages", source], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {
        "PYTHONPATH": os.pathsep.join([str(folder / "packages"), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        )
    }


def test_backends_lists_the_arm_with_its_options(installed):
    (found,) = [
        arm
        for arm in json.loads(compare("backends", "--json", environment=installed).stdout)
        if arm["arm"] == "gather"
    ]
    assert found["available"] is True
    assert found["options"] == {"process_group": "auto", "calls": "one"}


def test_arm_is_proven_and_explained_like_our_own(installed, tmp_path, mnist_dir):
    done = compare(
        *("run", "--backend", "gather:calls=each", "--no-control", "--repeats", 1, "--steps", 40),
        *("--data-dir", mnist_dir, "--output", tmp_path / "run"),
        environment=installed,
    )
    assert done.returncode == 0, done.stderr
    assert "proven for 20 steps and one at the end" in " ".join(done.stdout.split())
    lesson = compare("explain", tmp_path / "run", "--arm", "gather:calls=each", environment=installed)
    assert "gradients = [p.grad for p in self.trained]" in lesson.stdout


def test_without_the_package_the_arm_is_unknown():
    done = compare("run", "--backend", "gather")
    assert done.returncode == 2
    assert "There is no backend called 'gather'." in done.stderr
