"""Test how MPI's copies between ranks of a host are found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backends import single_copy
from compare.doctor import checkup
from tests import refusing

PROGRAM = [sys.executable, "-I", single_copy.__file__]


def test_refused_reads_are_found_with_their_reason():
    done = subprocess.run(
        [sys.executable, refusing.__file__, *PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{single_copy.REFUSED}Operation not permitted, EPERM; a seccomp filter is active\n"


def test_check_finds_what_the_program_finds():
    printed = subprocess.run(PROGRAM, capture_output=True, text=True, check=True).stdout
    facts = checkup.collect_facts(quick=True)
    assert facts["memory_reads_refused"] == printed.removeprefix(single_copy.REFUSED).strip()


def test_check_without_the_program_finds_nothing(monkeypatch, tmp_path):
    nowhere = {"ringside": "1", "ringside_path": str(tmp_path), "ringside_sources": ""}
    monkeypatch.setattr(checkup, "ringside_facts", lambda: nowhere)
    assert checkup.collect_facts(quick=True)["memory_reads_refused"] == ""


@pytest.mark.parametrize("printed", ["Traceback (most recent call last):\nImportError: no _ctypes\n", ""])
def test_check_takes_no_crash_for_a_refusal(monkeypatch, printed):
    monkeypatch.setattr(checkup, "output_of", lambda _: printed)
    assert checkup.collect_facts(quick=True)["memory_reads_refused"] == ""


def test_process_that_is_gone_cannot_be_read():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert single_copy.refusal(gone.pid, 0).startswith("No such process, ESRCH")
