"""Test the messages between the parent and an agent, and the mirror."""

import contextlib
import os
import time

import pytest

from compare.launch.agent.mirror import Mirror
from compare.launch.agent.protocol import Alive, End, FileChunk, FileContent, MessagePipe, ProtocolError
from compare.schema.launch_files import LaunchFiles


@pytest.fixture
def ends():
    """Both ends of a connection."""
    to_b, from_a = os.pipe()
    to_a, from_b = os.pipe()
    yield MessagePipe(to_a, from_a), MessagePipe(to_b, from_b)
    for descriptor in (to_b, from_a, to_a, from_b):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_pipe_delivers_messages_as_sent_after_the_greeting_of_a_shell(ends):
    one, other = ends
    os.write(one._write, b"Welcome to n1!\nYou have mail.\n")
    sent = [FileChunk("x", 7, bytes(range(256))), FileContent("y.json", b""), End(), Alive(1.5)]
    for message in sent:
        one.send(message)
    assert list(other.receive()) == sent
    assert list(other.receive()) == []
    assert not other.closed


@pytest.mark.parametrize(
    ("sent", "says"),
    [(b"\xff\xff\xff\xff" + b"spam", "bytes was announced"), (b"\x00\x00\x00\x01\x2a", None)],
    ids=["no message", "unknown kind"],
)
def test_pipe_refuses_bytes_that_are_no_message(ends, sent, says):
    one, other = ends
    one.flush()
    os.write(one._write, sent)
    with pytest.raises(ProtocolError, match=says):
        list(other.receive())


@pytest.mark.timed
def test_pipe_to_an_end_that_does_not_read_never_blocks(ends):
    one, other = ends
    began = time.monotonic()
    one.send(FileContent("x.json", bytes(1 << 22)))
    assert time.monotonic() - began < 2
    assert one.backlog_bytes > 1 << 20
    got = []
    while one.backlog_bytes or not got:
        got += other.receive()
        one.flush()
    assert got == [FileContent("x.json", bytes(1 << 22))]


def test_what_an_end_sent_before_it_closed_is_read_though_it_takes_nothing(ends):
    one, other = ends
    one.send(End())
    one.close()
    other.send(Alive(1.5))
    assert list(other.receive()) == [End()]
    assert other.closed
    assert not other.backlog_bytes


def test_mirror_sends_only_what_is_finished_or_appended(tmp_path, ends):
    one, other = ends
    mirror = Mirror(tmp_path, {"known"})
    for name in ("known", ".being-written", "log", "x.json"):
        (tmp_path / name).write_text("1")
    (tmp_path / "folder").mkdir()
    assert mirror.send(one)
    assert list(other.receive()) == [FileChunk("log", 0, b"1"), FileContent("x.json", b"1")]
    with (tmp_path / "log").open("a") as log:
        log.write("2")
    assert mirror.send(one)
    assert list(other.receive()) == [FileChunk("log", 1, b"2")]


def test_mirror_lists_exit_records_before_the_other_files(tmp_path, ends, monkeypatch):
    """Both may be written while the folder is listed, and the parent must not miss the result."""
    one, other = ends
    files = LaunchFiles(tmp_path)
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
        assert mirror.send(one)
    assert list(other.receive()) == [
        FileContent("rank-0.json", b"{}"),
        FileChunk("rank-0.log", 0, b"1"),
        FileContent("rank-0.exit", b"{}"),
    ]


def test_mirror_sends_no_exit_record_while_other_files_are_held_back(tmp_path, ends):
    """The other end takes nothing, and the log is long."""
    one, _ = ends
    files = LaunchFiles(tmp_path)
    files.exit(0).write_text("{}")
    files.log(0).write_bytes(bytes(4 << 20))
    mirror = Mirror(tmp_path, set())
    assert not mirror.send(one)
    assert files.exit(0).name not in mirror._sent
