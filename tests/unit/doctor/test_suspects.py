"""Test which variable of the shell keeps a library from loading."""

from __future__ import annotations

import pytest

from compare.doctor import availability
from compare.doctor.availability import find_suspects, unset_command

SHELL = {
    "HOME": "/root",
    "LD_LIBRARY_PATH": "/opt/cuda/lib",
    "OMP_NUM_THREADS": "4",
    "TORCH_LOGS": "bogus",
    "UCX_TLS": "tcp",
}


@pytest.mark.parametrize("guilty", [{name} for name in SHELL if name != "HOME"])
def test_one_variable_is_found_among_others(guilty):
    assert find_suspects(lambda environ: not guilty & set(environ), SHELL) == [*guilty]


def test_variables_that_only_help_together_are_all_named():
    guilty = {"LD_LIBRARY_PATH", "TORCH_LOGS"}
    found = find_suspects(lambda environ: not guilty & set(environ), SHELL)
    assert guilty <= set(found)
    assert "HOME" not in found


@pytest.mark.parametrize("shell", [SHELL, {"HOME": "/root"}])
def test_library_that_never_loads_has_no_suspect(shell):
    assert find_suspects(lambda _: False, shell) == []


def test_remedy_is_a_command_with_its_reason():
    written = unset_command("horovod", ["LD_LIBRARY_PATH"], {"LD_LIBRARY_PATH": f"/a:{'b' * 99}"})
    assert written == "unset LD_LIBRARY_PATH  # horovod loads without LD_LIBRARY_PATH=/a…"
    assert unset_command("horovod", [], {}) == ""


def test_path_with_a_broken_library_is_named_and_no_installation(tmp_path, monkeypatch, requires_backend):
    requires_backend("horovod")
    (tmp_path / "libmpi.so.40").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = availability.survey(["horovod"]).backends["horovod"]
    assert "libmpi.so.40: file too short" in found.problem
    assert found.remedy.startswith("unset LD_LIBRARY_PATH  # horovod loads without LD_LIBRARY_PATH=/")
