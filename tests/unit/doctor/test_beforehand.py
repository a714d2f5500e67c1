"""Test the check before a run, on this machine."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from compare.doctor import check_beforehand, checkup
from compare.doctor.facts import Disk
from compare.launch.engines import Carrier
from compare.schema.hosts import local_host


@pytest.fixture
def small(monkeypatch):
    """Give this machine little shared memory, and two ranks on one core."""
    real = checkup.collect_facts

    def collect_facts(**options):
        facts = real(**options)
        small = Disk(path="/dev/shm", free_bytes=2 << 20)  # noqa: S108 -- a name
        return facts | {"disks": [{"path": small.path, "free_bytes": small.free_bytes}], "cores": 1}

    monkeypatch.setattr(checkup, "collect_facts", collect_facts)


@pytest.mark.usefixtures("small")
def test_failure_has_all_findings_and_the_start_those_that_no_table_has():
    found = check_beforehand([local_host(2)], carrier=Carrier())
    assert {each.topic for each in found(failed=True)} == {"disk", "slots"}
    assert [each.topic for each in found(failed=False)] == ["disk"]


def test_dead_name_server_does_not_delay_the_start(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(checkup, "_NAMES_SECONDS", 3.0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: (never.wait(20), [])[1])
    began = time.monotonic()
    found = check_beforehand([local_host(1)], carrier=Carrier())
    assert found(failed=False) == []
    assert time.monotonic() - began < 2.0
    slow = [each for each in found(failed=True) if each.topic == "hostname"]
    never.set()
    assert "Name lookups are slow." in [each.what for each in slow]


def test_machine_without_defects_has_no_finding_of_its_libraries():
    found = check_beforehand([local_host(1)], carrier=Carrier())(failed=True)
    assert not {"torch", "horovod", "mpi", "ringside", "python"} & {each.topic for each in found}
