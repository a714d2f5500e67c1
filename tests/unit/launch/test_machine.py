"""Test what an agent reports of its machine."""

import sys

import pytest

from compare.launch.agent.machine import count_gpus, memory_left_bytes, missing_for_compile


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


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        ("0::/job/step", "job", "memory.max memory.current inactive_file"),
        ("4:memory:/job", "memory/job", "memory.limit_in_bytes memory.usage_in_bytes total_inactive_file"),
    ],
)
def test_memory_left_is_what_a_group_has_without_caches(tmp_path, line, folder, files):
    """The limit may be that of a parent of the own group."""
    limit, used, cache = files.split()
    group = tmp_path / folder
    (group / "step").mkdir(parents=True)
    (group / limit).write_text(f"{500 << 20}\n")
    (group / used).write_text(f"{490 << 20}\n")
    (group / "memory.stat").write_text(f"anon 1\n{cache} {300 << 20}\n")
    (tmp_path / "own").write_text(f"3:cpu:/\n{line}\n")
    assert memory_left_bytes(tmp_path, tmp_path / "own") == 310 << 20


def test_memory_left_without_limits_is_that_of_the_machine(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "own").write_text("0::/\n")
    assert memory_left_bytes(tmp_path, tmp_path / "own") > 100 << 20
