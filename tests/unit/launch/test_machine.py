"""Test what an agent reports of its machine."""

import os
import sys
import tempfile

import pytest

from compare.launch.agent.machine import count_gpus, missing_for_compile


@pytest.mark.parametrize(
    ("visible", "counted"), [(None, 2), ("", 0), ("1", 1), ("0,1,2", 2), ("-1", 0), ("0, -1,1", 1)]
)
def test_gpus_are_counted_without_torch(tmp_path, monkeypatch, visible, counted):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus(tmp_path) == counted
    assert count_gpus(tmp_path / "no driver") == 0


def test_missing_compiler_or_header_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert missing_for_compile() == "there is no C++ compiler: no-such-compiler is not on PATH"
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert missing_for_compile() == f"there is no {tmp_path}/Python.h"
    (tmp_path / "Python.h").touch()
    assert missing_for_compile() == ""
    noexec = os.statvfs_result((0,) * 8 + (os.ST_NOEXEC, 255))
    monkeypatch.setattr("os.statvfs", lambda _: noexec)
    assert missing_for_compile() == f"{tempfile.gettempdir()} is mounted noexec"
