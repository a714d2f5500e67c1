"""The engine of rehearsals: command lines and errors.

Real hosts are in tests/lab.
"""

import pytest

from compare.errors import UnavailableError
from compare.launch.engines import rehearsal
from compare.launch.engines.rehearsal import Rehearsal, allocate, link_settings
from compare.schema.hosts import Host, Link, local_host, parse_link

ENTER = ("nsenter", "-t", "7", "-n", "-u", "-m", "-i", "-p", "--")
HOST = Host("rehearsal-2", 1)
DELAY = "netem delay 2000us limit 100000"
REFUSED = "echo '{found}' >&2; exit 1"


@pytest.mark.parametrize(
    ("link", "rate", "latency", "segment"),
    [
        (Link(), "", "", ""),
        (parse_link("100mbit"), "100000000bit burst 16384", "", "gso_max_size 2048"),
        (parse_link("1gbit,2ms"), "1000000000bit burst 125000", DELAY, "gso_max_size 15625"),
        (Link(latency_seconds=0.002), "", DELAY, ""),
        (parse_link("10gbit"), "10000000000bit burst 1250000", "", "gso_max_size 65536"),
    ],
)
def test_link_is_shaped_by_tbf_and_netem(link, rate, latency, segment):
    assert link_settings(link) == (rate and f"tbf rate {rate} latency 50ms", latency, segment)


def test_rehearsal_enters_the_room_and_then_a_host():
    carrier = Rehearsal(2, room=7)
    assert carrier.argv(HOST, ["a", "b c"]) == (*ENTER, "sh", "/run/rehearsal/rehearsal-2", "a", "b c")
    assert carrier.argv(local_host(1), ["a", "b c"]) == (*ENTER, "a", "b c")
    own = Rehearsal(2, room=7, as_user=True).argv(local_host(1), ["a"])
    assert own[:5] == ("nsenter", "-t", "7", "-U", "--preserve-credentials")
    assert carrier.by_hand(HOST).endswith("sh /run/rehearsal/rehearsal-2 sh")
    assert carrier.remote_shell([HOST]).endswith('exec sh "/run/rehearsal/$host" sh -c "$*"\n')


def test_rehearsal_is_allocated_before_it_is_made():
    allocation = allocate({"hosts": 3, "slots": 2, "rate": 10**8, "latency": 0.002})
    assert [host.name for host in allocation.hosts] == ["rehearsal-1", "rehearsal-2", "rehearsal-3"]
    assert {host.slots for host in allocation.hosts} == {2}
    assert str(allocation.rehearsed) == "100 mbit/s, 2 ms"
    assert allocation.carrier == Rehearsal(3, allocation.rehearsed)
    alone = allocate({})
    assert ([host.slots for host in alone.hosts], str(alone.rehearsed)) == ([1, 1], "no rate limit")


def test_rehearsal_without_a_program_names_its_package(monkeypatch):
    monkeypatch.setattr(rehearsal, "_PACKAGES", {"no-such-program": "some-package"})
    with pytest.raises(UnavailableError, match="cannot be rehearsed") as caught, Rehearsal(2).opened():
        pass
    assert caught.value.found == "The program no-such-program is missing."
    assert caught.value.remedy == "apt-get install some-package"


@pytest.mark.parametrize(
    ("room", "found", "remedy"),
    [
        # The room itself goes on, until its pipe is closed.
        ("echo up; echo '{found}' >&2; echo failed; read -r _ || :", "mount: permission denied", ""),
        (REFUSED, "unshare: unshare failed: Operation not permitted", "Only root may make namespaces"),
        (REFUSED, "Error: Specified qdisc kind is unknown.", "lacks netem"),
        (REFUSED, "Error: Unknown device type.", "Rehearse on Linux"),
    ],
)
def test_rehearsal_that_the_kernel_refuses_says_what_to_do(monkeypatch, room, found, remedy):
    command = ["sh", "-c", room.format(found=found)]
    monkeypatch.setattr(rehearsal, "_room_command", lambda *_arguments, **_options: command)
    with pytest.raises(UnavailableError, match="cannot be rehearsed") as caught, Rehearsal(2).opened():
        pass
    assert caught.value.found == found
    assert remedy in caught.value.remedy
