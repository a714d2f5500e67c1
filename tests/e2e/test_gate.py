"""Test ``ringside gate`` with two environments, one of them slower."""

from __future__ import annotations

import json
import sys
import sysconfig
import venv
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from compare.analysis import analyse
from compare.schema.store import read_run
from tests.comparing import compare, inject

PASSED, SLOWER, TOO_NOISY = 0, 14, 15
LONGEST_SECONDS = 400


def an_environment(folder, *, share):
    """Make an environment like this one, with longer steps."""
    venv.create(folder)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    inject("e2e/slower_steps", folder / "injection", {"share": share})
    (packages / "other.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n{folder / 'injection'}\n"
    )
    python, torchrun = folder / "bin" / "python", folder / "bin" / "torchrun"
    torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
    torchrun.chmod(0o755)
    return python


def gate(folder, mnist_dir, *arguments, python=sys.executable, against):
    return compare(
        *("gate", "--against", against, "-np", 2, "--threads", 1, "--data", mnist_dir),
        *("--output", folder / "run", "--export", folder / "gate.xml", *arguments),
        python=str(python),
        timeout=LONGEST_SECONDS,
    )


def test_arms_of_both_environments_are_alive_in_one_run(tmp_path, mnist_dir):
    """One round judges nothing, and that is never green."""
    other = an_environment(tmp_path / "other", share=0.5)
    short = ("--repeats", 1, "--steps", 240, "--export", tmp_path / "gate.md")
    done = gate(tmp_path, mnist_dir, *short, against=other)
    assert done.returncode == TOO_NOISY, done.stderr
    run = read_run(tmp_path / "run")
    assert run.interleaved.mode == "blocks"
    prefixes = {launch.arm: {rank.attestation["prefix"] for rank in launch.ranks} for launch in run.launches}
    assert prefixes == {"ddp": {sys.prefix}, "ddp@against": {str(tmp_path / "other")}}
    assert analyse(run).gate.changes[0].speed_ratio > 1.1  # the other environment is slower
    assert ET.parse(tmp_path / "gate.xml").getroot().get("errors") == "1"
    assert "nothing is judged before round 5" in (tmp_path / "gate.md").read_text()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["arms"][1]["against"]["own_sources"] is True


@pytest.mark.long
@pytest.mark.timeout(LONGEST_SECONDS + 20)
def test_slower_environment_fails_the_gate(tmp_path, mnist_dir):
    slow = an_environment(tmp_path / "slow", share=0.25)
    done = gate(tmp_path, mnist_dir, "--budget", 300, python=slow, against=sys.executable)
    assert done.returncode == SLOWER, done.stdout + done.stderr
    assert ET.parse(tmp_path / "gate.xml").getroot().get("failures") == "1"
    assert analyse(read_run(tmp_path / "run")).gate.changes[0].speed_ratio < 0.9
