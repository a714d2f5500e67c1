"""Test the messages between the parent and an agent."""

import contextlib
import os
import time

import pytest

from compare.launch.agent.protocol import Alive, End, FileData, MessagePipe, ProtocolError


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
    sent = [FileData("x", bytes(range(256)), 7), FileData("y.json", b""), End(), Alive(1.5)]
    for message in sent:
        one.send(message)
    assert list(other.receive()) == sent
    assert list(other.receive()) == []
    assert not other.closed


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"\xff\xff\xff\xff" + b"spam", "announced a message of 4,294,967,295 bytes"),
        (b"\x00\x00\x00\x01\x2a", None),
    ],
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
    one.send(FileData("x.json", bytes(1 << 22)))
    assert time.monotonic() - began < 2
    assert one.backlog_bytes > 1 << 20
    got = []
    while one.backlog_bytes or not got:
        got += other.receive()
        one.flush()
    assert got == [FileData("x.json", bytes(1 << 22))]


def test_what_an_end_sent_before_it_closed_is_read_though_it_takes_nothing(ends):
    one, other = ends
    one.send(End())
    one.close()
    other.send(Alive(1.5))
    assert list(other.receive()) == [End()]
    assert list(other.receive()) == []
    assert other.closed
    assert not other.backlog_bytes
