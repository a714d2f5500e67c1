"""An arm that another package adds by its entry point, on a machine that cannot get MNIST."""

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
        for arm in json.loads(compare("backends", "--format", "json", environment=installed).stdout)
        if arm["arm"] == "gather"
    ]
    assert found["available"] is True
    assert found["options"] == {"process_group": "auto", "calls": "one"}


@pytest.fixture(scope="module")
def ran(installed, tmp_path_factory):
    """Run the arm where no mirror of MNIST answers; return the folder and what was printed."""
    folder = tmp_path_factory.mktemp("gather")
    done = compare(
        *("run", "--backend", "gather:calls=each", "--no-control", "--repeats", 1, "--steps", 40),
        *(
            "--interleave",
            "auto:reruns=0",
            "--data",
            f"auto:folder={folder / 'data'}",
            "--output",
            folder / "run",
        ),
        environment=installed | {"RINGSIDE_MNIST_MIRRORS": "http://127.0.0.1:9/"},
    )
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


def test_arm_is_proven_and_explained_like_our_own(installed, ran):
    folder, printed = ran
    assert "proven for 20 steps and one at the end" in " ".join(printed.split())
    lesson = compare(
        "report", folder, "--format", "lesson", "--arm", "gather:calls=each", environment=installed
    )
    assert "gradients = [p.grad for p in self.trained]" in lesson.stdout


def test_run_on_the_stand_in_digits_states_it_on_the_table(ran):
    _, printed = ran
    assert "scikit-learn's digits (NOT MNIST)" in printed
    assert "MNIST is not available" in printed


def test_without_the_package_the_arm_is_unknown():
    done = compare("run", "--backend", "gather")
    assert done.returncode == 2
    assert "There is no backend called 'gather'." in done.stderr
