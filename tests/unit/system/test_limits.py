"""Read limits of memory and CPU time from control groups."""

import pytest

from compare.errors import OutputError
from compare.system import files
from compare.system.limits import core_quota, memory_left_bytes, memory_limit_bytes, oom_kills


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


@pytest.mark.parametrize(
    ("line", "folder", "limit", "counts"),
    [
        ("0::/job/step", "job", "memory.max", ("memory.events", "oom 2\noom_kill 3\n")),
        (
            *("4:memory:/job", "memory/job", "memory.limit_in_bytes"),
            ("memory.oom_control", "under_oom 0\noom_kill 3\n"),
        ),
    ],
)
def test_memory_limit_and_kills_are_those_of_the_group(tmp_path, line, folder, limit, counts):
    group = tmp_path / folder
    (group / "step").mkdir(parents=True)
    (group / limit).write_text(f"{500 << 20}\n")
    name, text = counts
    (group / name).write_text(text)
    (tmp_path / "own").write_text(f"{line}\n")
    assert memory_limit_bytes(tmp_path, tmp_path / "own") == (500 << 20, True)
    assert oom_kills(tmp_path, tmp_path / "own") == 3


def test_memory_limit_without_a_group_is_the_memory_of_the_host(tmp_path):
    limit, is_of_group = memory_limit_bytes(tmp_path, tmp_path / "none")
    assert limit > 100 << 20
    assert not is_of_group
    assert oom_kills(tmp_path, tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("line", "folder", "content"),
    [
        ("0::/job/step", "job", {"cpu.max": "150000 100000"}),
        (
            "4:cpu,cpuacct:/job",
            "cpu,cpuacct/job",
            {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"},
        ),
        ("0::/not/in/this/container", "", {"cpu.max": "150000 100000"}),
    ],
)
def test_core_quota_is_the_least_of_all_groups(tmp_path, line, folder, content):
    group = tmp_path / folder
    (group / "step").mkdir(parents=True)
    for name, text in content.items():
        (group / name).write_text(f"{text}\n")
    (group / "step" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "own").write_text(f"3:memory:/\n{line}\n")
    assert core_quota(tmp_path, tmp_path / "own") == 1.5


def test_core_quota_without_limits_is_none(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "own").write_text("1:cpu:/\n")
    assert core_quota(tmp_path, tmp_path / "own") is None


@pytest.mark.parametrize("left", [10 << 20, 1 << 40])
def test_file_that_memory_cannot_hold_is_refused(tmp_path, monkeypatch, left):
    """Otherwise the kernel would kill this program, or another one."""
    (tmp_path / "results.json").write_text("[1, 2, 3]" + " " * (1 << 20))
    monkeypatch.setattr(files, "memory_left_bytes", lambda: left)
    if left == 10 << 20:
        with pytest.raises(OutputError, match="too large") as error:
            files.read_json(tmp_path / "results.json", list)
        assert error.value.remedy
    else:
        assert files.read_json(tmp_path / "results.json", list) == [1, 2, 3]
