"""What launchers that start ranks by ssh are given, where hosts get their data from, and who is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compare import data
from compare.data import DatasetSource
from compare.errors import HostError
from compare.launch import staging as delivery
from compare.launch.cluster import many_hosts, ssh_config
from compare.launch.engines.fanout import Reach
from compare.schema.hosts import Host

NOWHERE = [Host(f"no-such-host-{n}.invalid", 1, source=f"hosts:{n}") for n in (1, 2)]


def asked_of_ssh(tmp_path, host, config):
    """What ssh itself makes of a configuration."""
    file = tmp_path / "config"
    file.write_text(config)
    done = subprocess.run(["ssh", "-G", "-F", file, host], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_launchers_log_in_as_the_links_do(tmp_path):
    hosts = [Host("n1", 1, "alice"), Host("n2", 1)]
    config = ssh_config(hosts, Reach(user="bob", port=2222, identity="/keys/of mine"))
    first, second = (asked_of_ssh(tmp_path, name, config) for name in ("n1", "n2"))
    assert (first["user"], second["user"]) == ("alice", "bob")
    for its in (first, second):
        assert (its["port"], its["identityfile"]) == ("2222", "/keys/of mine")
        assert (its["batchmode"], its["serveraliveinterval"]) == ("yes", "3")


def test_every_host_that_cannot_be_used_is_named():
    with (
        pytest.raises(HostError, match="2 of 2 hosts cannot be used") as caught,
        many_hosts(tuple(NOWHERE), python=sys.executable, reach=Reach()),
    ):
        pass
    assert "no-such-host-1.invalid (hosts:1)" in caught.value.found
    assert "no-such-host-2.invalid (hosts:2)" in caught.value.found


@pytest.fixture
def digits(tmp_path):
    return data.resolve("digits", tmp_path / "mine")


@pytest.fixture
def at_this_host(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return (Host("localhost", 1),)


def test_a_data_set_that_is_there_is_taken_where_it_lies(digits, at_this_host):
    said = []
    found = delivery.deliver(at_this_host, digits, python=sys.executable, reach=Reach(), say=said.append)
    assert (found, said) == ([digits.directory], [])


def test_a_data_set_that_is_not_there_is_delivered_once_and_verified(digits, at_this_host, tmp_path):
    # Elsewhere it lies in another folder than here: made out by asking for one that there is not.
    ours = os.path.realpath(digits.directory)
    held = delivery.main("digits", "/no/such/folder")
    assert held.directory == ""
    assert held.cache.startswith(str(tmp_path / "cache"))
    files = {path.name: path.read_bytes() for path in data.files_in(Path(ours))}
    delivery.put(at_this_host, held.cache, files, reach=Reach(), timeout_seconds=60)
    assert delivery.main("digits", "/no/such/folder").directory == held.cache
    damaged = next(path for path in data.files_in(Path(held.cache)))
    damaged.write_bytes(b"nonsense")
    assert delivery.main("digits", "/no/such/folder").directory == ""


def test_a_delivery_that_does_not_arrive_is_an_error(digits, at_this_host, monkeypatch):
    monkeypatch.setattr(delivery, "_ask", lambda hosts, *_rest: [delivery.Held("", "/cache")] * len(hosts))
    monkeypatch.setattr(delivery, "put", lambda *_arguments, **_rest: [])
    source = DatasetSource(name="digits", requested="digits", directory=digits.directory)
    said = []
    with pytest.raises(HostError, match="could not be given the data set"):
        delivery.deliver(at_this_host, source, python=sys.executable, reach=Reach(), say=said.append)
    assert said[0].startswith("Copying digits")


def test_what_a_host_answers_may_follow_a_greeting():
    answer = delivery.Answer(Host("n1", 1), 0, b'Welcome\n{"directory":"/d","cache":"/c"}\n', b"", 0.1)
    assert delivery._read(answer) == delivery.Held("/d", "/c")
    with pytest.raises(HostError, match="n1"):
        delivery._read(answer._replace(stdout=b"Welcome\n"))
