"""Results on disk: whole or not at all, the same after reading, and refused with the reason otherwise."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import threading
from contextlib import contextmanager

import msgspec
import pytest

from compare.errors import OutputError
from compare.results import (
    RESULTS_FILE,
    SCHEMA_VERSION,
    Failure,
    MachineUse,
    RankResult,
    read_json,
    read_run,
    write_json,
    write_text,
)
from tests.unit.factories import DIGITS, a_block, a_phased_block, a_rank, a_run


def refusal(path):
    with pytest.raises(OutputError) as caught:
        read_run(path)
    assert caught.value.exit_code == 5
    return caught.value


@contextmanager
def full_disk():
    """No file may grow beyond a few bytes: the kernel refuses every write, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- round trips ----


def test_a_run_is_the_same_after_reading(tmp_path):
    run = a_run(
        {"none": [4.0, 4.5], "ddp:bucket_cap_mb=0.1": [5.0, 5.5], "horovod:controller=mpi": [6.0]},
        dataset=DIGITS,
        left_out={"mpi": "mpi4py is not installed"},
        complete=False,
        failure=Failure(arm="horovod", round=2, kind="LaunchError", message="rank 1 failed\nits reason"),
    )
    run = msgspec.structs.replace(run, set_aside=a_run({"none": [9.0], "ddp": [9.5]}).launches)
    write_json(tmp_path / RESULTS_FILE, run)
    assert read_run(tmp_path) == run
    assert read_run(tmp_path / RESULTS_FILE) == run


def test_a_ranks_result_is_the_same_after_reading(tmp_path):
    result = a_rank(
        3,
        blocks=[a_block(5), a_block(4, mode="reference"), a_phased_block(forward=[1, 2], sync=[3, 4])],
        peak_device_memory_bytes=7,
        message_bytes=[4, 12],
        collective_ns=[],
        machine=MachineUse(wall_ns=10, cpus=3, busy_ns=20, stolen_ns=1),
        attestation={"group": {"transport": "NCCL"}, "ü": [1, None]},
    )
    write_json(tmp_path / "rank-3.json", result)
    assert read_json(tmp_path / "rank-3.json", RankResult) == result


def test_the_file_is_json_that_anybody_can_read(tmp_path):
    write_json(tmp_path / RESULTS_FILE, a_run({"ddp": [5.0]}))
    read = json.loads((tmp_path / RESULTS_FILE).read_text())
    assert read["schema_version"] == SCHEMA_VERSION == 2
    assert read["config"]["arms"] == [{"backend": "ddp", "given": {}, "twin": 0}]
    assert read["launches"][0]["ranks"][0]["blocks"] == [
        {"mode": "training", "steps": 30, "wall_ns": 150_000_000, "cpu_ns": 150_000_000, "phases": {}}
    ]
    assert read["launches"][0]["ranks"][0]["machine"] is None


def test_launches_are_found_by_their_arm():
    run = a_run({"none": [4.0, 4.0], "ddp": [5.0]})
    control, ddp = run.config.arms
    assert [(launch.arm, launch.round) for launch in run.of(control)] == [("none", 1), ("none", 2)]
    assert [(launch.arm, launch.round) for launch in run.of(ddp)] == [("ddp", 1)]


# ---- whole or not at all ----


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / RESULTS_FILE
    write_json(path, a_run({"ddp": [5.0]}))
    before = path.read_bytes()
    with full_disk(), pytest.raises(OutputError) as caught:
        write_json(path, a_run({"ddp": [5.0, 6.0]}))
    assert str(path) in caught.value.what
    assert caught.value.found == os.strerror(errno.EFBIG)
    assert "--output" in caught.value.remedy
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / RESULTS_FILE
    write_text(path, "old")

    def interrupt(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdopen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / RESULTS_FILE
    short, long = a_run({"ddp": [5.0]}), a_run({"ddp": [5.0] * 50})
    write_json(path, short)
    done = threading.Event()

    def keep_writing():
        while not done.is_set():
            write_json(path, long)
            write_json(path, short)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        seen = {len(read_run(tmp_path).launches) for _ in range(200)}
    finally:
        done.set()
        writer.join()
    assert seen <= {1, 50}


def test_a_folder_that_is_gone_is_named(tmp_path):
    path = tmp_path / "gone" / RESULTS_FILE
    with pytest.raises(OutputError) as caught:
        write_json(path, a_run())
    assert str(path) in caught.value.what
    assert "No such file" in caught.value.found


def test_a_folder_is_not_written_over(tmp_path):
    (tmp_path / "table.md").mkdir()
    with pytest.raises(OutputError, match=r"table\.md"):
        write_text(tmp_path / "table.md", "text")


def test_others_may_read_what_the_umask_lets_them(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "table.md", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "table.md").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "table.md", tmp_path / "latest.md"
    link.symlink_to(target)
    for text in ("first", "second"):
        write_text(link, text)
        assert link.is_symlink()
        assert target.read_text() == text


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    """``--output /dev/stdout``: renaming a file over it would take it from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(timeout=10)
    assert read == ["text"]


# ---- what is refused ----


@pytest.mark.parametrize("path", ["nowhere", ".", "nowhere/results.json"])
def test_where_there_is_no_run_it_says_so(tmp_path, path):
    error = refusal(tmp_path / path)
    assert "no run" in error.what
    assert error.found.endswith("does not exist.")
    assert "compare run" in error.remedy


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path, share):
    write_json(tmp_path / RESULTS_FILE, a_run())
    whole = (tmp_path / RESULTS_FILE).read_bytes()
    (tmp_path / RESULTS_FILE).write_bytes(whole[: int(len(whole) * share)])
    error = refusal(tmp_path)
    assert str(tmp_path / RESULTS_FILE) in error.what
    assert error.found
    assert "cut short" in error.remedy


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"7", b"\xff\xfe", b"\x00" * 10, b"not json", b"{}"]
)
def test_what_is_no_run_at_all_is_refused(tmp_path, content):
    (tmp_path / RESULTS_FILE).write_bytes(content)
    assert str(tmp_path / RESULTS_FILE) in refusal(tmp_path).what


def edited(tmp_path, **changes):
    write_json(tmp_path / RESULTS_FILE, a_run())
    content = json.loads((tmp_path / RESULTS_FILE).read_text()) | changes
    (tmp_path / RESULTS_FILE).write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize("version", [0, 1, 3, 99])
def test_another_schema_version_is_refused_and_not_guessed_at(tmp_path, version):
    error = refusal(edited(tmp_path, schema_version=version))
    assert f"schema version {version}" in error.what
    assert "schema version 2" in error.found


def test_another_schema_version_is_recognised_whatever_else_it_holds(tmp_path):
    (tmp_path / RESULTS_FILE).write_text('{"schema_version": 3, "launches": {"a": 1}, "config": null}')
    assert "schema version 3" in refusal(tmp_path).what


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"launches": [{"round": 1}]}, "launches[0]"),
        ({"complete": "yes"}, "complete"),
        ({"hosts": [{"name": "a b", "slots": 2}]}, "hosts[0]"),
        (
            {"config": {"arms": [{"backend": "carrier-pigeon"}], "baseline": "carrier-pigeon"}},
            "carrier-pigeon",
        ),
    ],
    ids=["launch", "flag", "host", "backend"],
)
def test_a_file_that_was_changed_is_refused_where_it_is_wrong(tmp_path, changes, named):
    assert named in refusal(edited(tmp_path, **changes)).found


def test_fields_of_a_later_version_are_passed_over(tmp_path):
    assert read_run(edited(tmp_path, weather="fine")) == a_run()


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / RESULTS_FILE).mkdir()
    assert "Is a directory" in refusal(tmp_path).found
