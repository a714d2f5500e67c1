"""Test CI's check for skipped tests and for reports without tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "check_skips.py"

RAN = '<testcase classname="tests.unit.test_a" name="test_runs" time="0.1" />'
SKIPPED = (
    '<testcase classname="tests.lab.test_b" name="test_ssh[two hosts]" time="0">'
    '<skipped type="pytest.skip" message="no ssh here: install it">b.py:3: no ssh here</skipped></testcase>'
)


@pytest.fixture
def check(tmp_path):
    def run(cases: str, permits: str) -> tuple[int, str]:
        (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        (tmp_path / "permitted").write_text(permits)
        command = [sys.executable, SCRIPT, tmp_path / "permitted", tmp_path / "report.xml"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize(
    ("cases", "permits", "status", "shown"),
    [
        (RAN, "", 0, "1 ran, 0 skipped"),
        ("", "", 1, "nothing ran"),
        (SKIPPED, r"tests\.lab\..* : no ssh here", 1, "nothing ran"),
        (
            RAN + SKIPPED,
            "",
            1,
            "NOT PERMITTED: tests.lab.test_b.test_ssh[two hosts]: no ssh here: install it",
        ),
        (RAN + SKIPPED, "# reason\n\ntests\\.lab\\..* : no ssh here\n", 0, "permitted by line 3"),
        (RAN + SKIPPED, r"tests\.lab\..* : no scp here", 1, "NOT PERMITTED"),
        (RAN + SKIPPED, r"tests\.lab : no ssh here", 1, "NOT PERMITTED"),  # a part of the id is not enough
        (RAN, r"tests\.lab\..* : no ssh here", 0, "not needed this time"),
        (RAN, "tests.lab no ssh here", 1, "permitted:1: expected"),
        (RAN, "tests.( : no ssh here", 1, "permitted:1: not a regular expression"),
    ],
)
def test_check_skips_compares_skips_with_the_permitted_ones(check, cases, permits, status, shown):
    code, output = check(cases, permits)
    assert shown in output
    assert code == status, output


def test_check_skips_without_a_report_fails(tmp_path):
    (tmp_path / "permitted").write_text("")
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "permitted"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no report" in done.stdout
