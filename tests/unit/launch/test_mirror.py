"""Test how the files of a launch are sent, and which of them a host may write."""

import resource

import pytest

from compare.errors import HostError, OutputError
from compare.launch.agent import mirror as module
from compare.launch.agent.mirror import Mirror, ReceivedFiles
from compare.launch.agent.protocol import FileData, ProtocolError
from compare.schema.hosts import Host
from compare.schema.job import Progress, read_progress
from compare.schema.launch_files import LaunchFiles


class APipe(list):
    """The messages that were sent into a pipe; all of them wait in it if it is not read."""

    send, is_read = list.append, True

    @property
    def backlog_bytes(self):
        return 0 if self.is_read else sum(len(message.data) for message in self)


def test_mirror_sends_only_what_is_finished_or_appended(tmp_path):
    mirror, pipe = Mirror(tmp_path, {"known"}), APipe()
    for name in ("known", ".being-written", "log", "x.json"):
        (tmp_path / name).write_text("1")
    (tmp_path / "folder").mkdir()
    assert mirror.send(pipe)
    assert pipe == [FileData("log", b"1", 0), FileData("x.json", b"1")]
    with (tmp_path / "log").open("a") as log:
        log.write("2")
    assert mirror.send(pipe)
    assert pipe[2:] == [FileData("log", b"2", 1)]


def test_mirror_lists_exit_records_before_the_other_files(tmp_path, monkeypatch):
    """Both may be written while the folder is listed, and the parent must not miss the result."""
    files, pipe = LaunchFiles(tmp_path), APipe()
    files.log(0).write_text("1")
    look, looks = Mirror._files, []

    def look_then_write(mirror):
        found = list(look(mirror))
        if not looks:
            files.result(0).write_text("{}")
            files.exit(0).write_text("{}")
        looks.append(found)
        return iter(found)

    monkeypatch.setattr(Mirror, "_files", look_then_write)
    mirror = Mirror(tmp_path, set())
    for _ in range(2):
        assert mirror.send(pipe)
    assert pipe == [
        FileData("rank-0.json", b"{}"),
        FileData("rank-0.log", b"1", 0),
        FileData("rank-0.exit", b"{}"),
    ]


def test_mirror_sends_no_exit_record_while_other_files_are_held_back(tmp_path):
    files, pipe = LaunchFiles(tmp_path), APipe()
    pipe.is_read = False
    files.exit(0).write_text("{}")
    files.log(0).write_bytes(bytes(4 << 20))
    assert not Mirror(tmp_path, set()).send(pipe)
    assert {message.name for message in pipe} == {files.log(0).name}


def test_mirror_leaves_progress_to_the_news_of_ranks(tmp_path):
    files, pipe = LaunchFiles(tmp_path), APipe()
    files.progress(0).write_text("{}\n")
    assert Mirror(tmp_path, set()).send(pipe)
    assert pipe == []


# ---- what arrives ----


@pytest.fixture
def files(tmp_path):
    return LaunchFiles(tmp_path)


@pytest.fixture
def hostile(files):
    """A host of rank 1, which sends what it likes."""
    files.job.write_text("ours")
    return ReceivedFiles(Host("n2", 1), files, [1])


@pytest.mark.parametrize(
    "name",
    [
        *("job.json", "commands.json", "lease", "results.json", "rank-0.json", "rank-0.exit", "rank-2.log"),
        *("rank-1.sh", "rank--1.log", "rank-1", "rank-01.log", "launcher-n1.log", "core"),
    ],
)
def test_host_writes_only_the_files_of_its_own_ranks(hostile, files, name):
    for message in (FileData(name, b"theirs"), FileData(name, b"theirs", 0)):
        hostile.write(message)
    assert [path.name for path in files.directory.iterdir()] == ["job.json"]
    assert files.job.read_text() == "ours"
    for own in ("rank-1.json", "rank-1.failure.json", "rank-1.exit"):
        hostile.write(FileData(own, b"its own"))
        assert (files.directory / own).read_bytes() == b"its own"
    hostile.write(FileData("launcher.log", b"12", 0))
    assert (files.directory / "launcher-n2.log").read_text() == "12"


@pytest.mark.parametrize(
    ("offset", "data", "error", "says"),
    [
        *((offset, b"456", ProtocolError, "It sent rank-1.log from byte") for offset in (1 << 40, 4, 0, -1)),
        (3, b"4567", HostError, "Host n2 sends more than"),
    ],
)
def test_host_whose_file_has_a_gap_or_no_end_is_refused(
    hostile, files, monkeypatch, offset, data, error, says
):
    monkeypatch.setattr(module, "_FILE_BYTES", 6)
    hostile.write(FileData("rank-1.log", b"123", 0))
    with pytest.raises(error, match=says):
        hostile.write(FileData("rank-1.log", data, offset))
    hostile.write(FileData("rank-1.log", b"456", 3))
    assert files.log(1).read_text() == "123456"


@pytest.mark.parametrize("name", ["../x", "/etc/x", ".hidden", "", "a/b", "rank-1.log\0"])
def test_host_writes_to_no_other_folder(hostile, files, name):
    with pytest.raises(ProtocolError):
        hostile.write(FileData(name, b""))
    assert list(files.directory.iterdir()) == [files.job]


def test_folder_keeps_the_first_record_of_each_stage_of_a_rank(hostile, files):
    stages = ["join", "train", "train", "turn", "train"]
    records = [Progress(stage=s, step=n, at=1.0, limit_seconds=9.0) for n, s in enumerate(stages)]
    for record in records:
        hostile.write_progress({1: record})
    assert read_progress(files, 1) == records[3]
    assert len(files.progress(1).read_text().splitlines()) == 3


def test_result_that_cannot_be_written_whole_leaves_no_file(tmp_path):
    received = ReceivedFiles(Host("n1", 1), LaunchFiles(tmp_path), [0])
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
    try:
        with pytest.raises(OutputError, match=r"rank-0\.json"):
            received.write(FileData("rank-0.json", bytes(8192)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    assert list(tmp_path.iterdir()) == []
