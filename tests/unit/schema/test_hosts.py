"""Hosts: what is refused, what is local, where ranks are placed, and links of rehearsed ones."""

from __future__ import annotations

import socket

import msgspec
import pytest

from compare.errors import UsageError
from compare.schema.hostfile import parse_hostfile
from compare.schema.hosts import Host, Link, fill_slots, is_local, local_host, parse_link


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"name": "-x"}, {"name": ""}, {"user": "-x"}, {"name": "::x"}]
)
def test_host_unfit_for_a_launcher_is_refused(wrong):
    fields = {"name": "a", "slots": 2} | wrong
    with pytest.raises(ValueError, match=r"^'"):
        Host(**fields)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(fields), type=Host)


def test_is_local_knows_this_machine_by_name_alone(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Box7")
    for name in ("localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "box7", "BOX7"):
        assert is_local(Host(name, 1))
    for name in ("box8", "10.0.0.1", "127.example.com", "fe80::1", "localhost.evil.org"):
        assert not is_local(Host(name, 1))
    assert not is_local(Host("localhost", 1, user="alice"))


def test_is_local_looks_up_other_forms_of_this_machines_name(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "pi-launcher")
    addresses = {"pi-launcher.pi.default.svc": "127.0.1.1", "pi-launcher.elsewhere": "203.0.113.9"}

    def getaddrinfo(name, _port):
        if name not in addresses:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert not is_local(Host("pi-launcher.not-yet.svc", 1))
    assert is_local(Host("pi-launcher.pi.default.svc", 1))
    assert not is_local(Host("pi-launcher.elsewhere", 1))
    addresses["pi-worker-0.pi.default.svc"] = "127.0.0.1"
    assert not is_local(Host("pi-worker-0.pi.default.svc", 1))


def test_local_host_is_this_machine():
    host = local_host(2)
    assert (host.name, host.slots, host.destination) == ("localhost", 2, "localhost")
    assert is_local(host)
    assert Host("a", 1, user="alice").destination == "alice@a"
    with pytest.raises(UsageError, match="slots=0"):
        local_host(0)


def placed(spec, ranks):
    return [(host.name, host.slots) for host in fill_slots(parse_hostfile(spec, "hosts"), ranks)]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (None, [("a", 2), ("b", 4), ("c", 2)]),
        (8, [("a", 2), ("b", 4), ("c", 2)]),
        (7, [("a", 2), ("b", 4), ("c", 1)]),
        (3, [("a", 2), ("b", 1)]),
        (1, [("a", 1)]),
    ],
)
def test_place_fills_hosts_in_order(ranks, expected):
    assert placed("a 2\nb 4\nc 2", ranks) == expected


def test_place_refuses_more_ranks_than_slots():
    with pytest.raises(UsageError, match="5 ranks do not fit: the hosts take 4") as caught:
        placed("a slots=2 max_slots=3\nb slots=2 max_slots=3", 5)
    assert "a:2,b:2" in caught.value.found


@pytest.mark.parametrize(
    ("written", "bits", "seconds", "shown"),
    [
        ("100mbit", 100_000_000, 0, "100 mbit/s"),
        ("1gbit,2ms", 1_000_000_000, 0.002, "1 gbit/s, 2 ms"),
        ("2.5Gbit, 500us", 2_500_000_000, 0.0005, "2.5 gbit/s, 0.5 ms"),
        ("100kbit,1s", 100_000, 1, "100 kbit/s, 1000 ms"),
    ],
)
def test_link_is_read_as_tc_writes_it(written, bits, seconds, shown):
    link = parse_link(written)
    assert (link.bits_per_second, link.latency_seconds) == (bits, pytest.approx(seconds))
    assert str(link) == shown


def test_link_without_a_rate_has_no_limit():
    assert str(Link()) == "no rate limit"
    assert str(Link(latency_seconds=0.002)) == "no rate limit, 2 ms"


WRONG = ["", "fast", "1", "1gbps", "1gbit,", "1gbit,2", "2ms", "1gbit,2ms,3ms", "-1gbit"]


@pytest.mark.parametrize("written", WRONG)
def test_link_in_another_spelling_is_refused(written):
    with pytest.raises(UsageError, match="--link cannot be") as caught:
        parse_link(written)
    assert "1gbit,2ms" in caught.value.remedy


@pytest.mark.parametrize("written", ["1bit", "0gbit", "2tbit", "1gbit,11s"])
def test_link_out_of_range_is_refused(written):
    with pytest.raises(UsageError, match=r"from 100kbit to 1tbit|at most 10s"):
        parse_link(written)
