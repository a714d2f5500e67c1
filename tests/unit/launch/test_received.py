"""Which files a host may send, and how much of each."""

from __future__ import annotations

import pytest

from compare.errors import HostError
from compare.launch.agent import received as module
from compare.launch.agent.protocol import FileChunk, FileContent, ProtocolError
from compare.launch.agent.received import ReceivedFiles
from compare.schema.hosts import Host
from compare.schema.launch_files import LaunchFiles


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
    for message in (FileContent(name, b"theirs"), FileChunk(name, 0, b"theirs")):
        hostile.write(message)
    assert [path.name for path in files.directory.iterdir()] == ["job.json"]
    assert files.job.read_text() == "ours"
    for own in ("rank-1.json", "rank-1.failure.json", "rank-1.exit"):
        hostile.write(FileContent(own, b"its own"))
        assert (files.directory / own).read_bytes() == b"its own"
    hostile.write(FileChunk("launcher.log", 0, b"12"))
    assert (files.directory / "launcher-n2.log").read_text() == "12"


@pytest.mark.parametrize(
    ("offset", "data", "error", "says"),
    [
        *((offset, b"456", ProtocolError, "rank-1.log goes on at") for offset in (1 << 40, 4, 0, -1)),
        (3, b"4567", HostError, "Host n2 sends more than"),
    ],
)
def test_host_whose_file_has_a_gap_or_no_end_is_refused(
    hostile, files, monkeypatch, offset, data, error, says
):
    monkeypatch.setattr(module, "_FILE_BYTES", 6)
    hostile.write(FileChunk("rank-1.log", 0, b"123"))
    with pytest.raises(error, match=says):
        hostile.write(FileChunk("rank-1.log", offset, data))
    hostile.write(FileChunk("rank-1.log", 3, b"456"))
    assert files.log(1).read_text() == "123456"


@pytest.mark.parametrize("name", ["../x", "/etc/x", ".hidden", "", "a/b", "rank-1.log\0"])
def test_host_writes_to_no_other_folder(hostile, files, name):
    with pytest.raises(ProtocolError):
        hostile.write(FileContent(name, b""))
    assert list(files.directory.iterdir()) == [files.job]
