"""Test the names of libraries in what they print."""

from __future__ import annotations

import pytest

from backends import evidence


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("Open MPI v4.1.8, package: Open MPI root@host, ident: 4.1.8, Feb 04, 2025\x00", "Open MPI v4.1.8"),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\nMPICH ABI:  17:2:5\n", "MPICH 5.0.2"),
    ],
)
def test_mpi_library_is_named_with_its_version(printed, name):
    assert evidence.mpi_library(printed) == name


@pytest.mark.parametrize(
    ("segments", "interfaces", "transport"),
    [
        (["mpich_shm_38bcfbfe_0"], [], "shared memory"),
        (["ringside-1/vader_segment.n.0.1"], ["lo"], "shared memory"),
        (["sem.mp-x"], ["lo"], "TCP over lo"),
        (["mpich_shm_38bcfbfe_0"], ["eth0"], "shared memory, TCP over eth0"),
    ],
)
def test_mpi_transport_is_read_from_the_kernel(monkeypatch, segments, interfaces, transport):
    monkeypatch.setattr(evidence, "shared_segments", lambda: segments)
    monkeypatch.setattr(evidence, "socket_interfaces", lambda: interfaces)
    assert evidence.mpi_transport(2) == transport
