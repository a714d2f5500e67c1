"""Provide labs: ``make_lab(hosts=4)``, or ``lab`` with two hosts for a file."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.lab import failure_table
from tests.lab.failure_table import FailureTable
from tests.lab.hosts import Lab, why_not

TABLE, SLURM_TABLE = pytest.StashKey[FailureTable](), pytest.StashKey[FailureTable]()


def pytest_addoption(parser):
    parser.addoption(
        "--failure-table",
        type=Path,
        metavar="FILE",
        help="write the measured table of failures between its marks in FILE",
    )
    parser.addoption(
        "--slurm-table", type=Path, metavar="FILE", help="the same for failures in jobs of Slurm"
    )


def pytest_configure(config):
    config.stash[TABLE] = FailureTable()
    config.stash[SLURM_TABLE] = FailureTable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Write each table if all of it was measured within its bounds."""
    from tests.lab import test_failures, test_slurm

    if exitstatus == 0:
        for option, key, rows, name in (
            ("--failure-table", TABLE, test_failures.FAILURES, "failures"),
            ("--slurm-table", SLURM_TABLE, test_slurm.FAILURES, "slurm"),
        ):
            if file := session.config.getoption(option):
                failure_table.write(session.config.stash[key].markdown(list(rows.values())), file, name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a timed test alone, and the others side by side.

    A test of more than two ranks fills two cores, and is timed too.
    """
    # Locks on two files that all workers have.
    with Path(__file__).open() as turn, Path(failure_table.__file__).open() as cores:
        fcntl.flock(turn, fcntl.LOCK_EX)  # no test overtakes a timed one that waits
        fcntl.flock(cores, fcntl.LOCK_EX if item.get_closest_marker("timed") else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture
def record(pytestconfig):
    """Record in the table how long a failure took."""
    return pytestconfig.stash[TABLE].record


@pytest.fixture
def record_in_a_job(pytestconfig):
    """Print and record how long a failure in a job took."""

    def record(row, column, seconds):
        print(f"{row.what}, {column}: {seconds:.1f} s")
        pytestconfig.stash[SLURM_TABLE].record(row, column, seconds)

    return record


@pytest.fixture(scope="session")
def requires_lab() -> None:
    """Skip, with the reason, if no lab can be made."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def mnist_dir(mnist_dir):
    """Resolve MNIST's folder: each host has its own /tmp, where links break."""
    return mnist_dir.resolve()


@pytest.fixture
def make_lab(requires_lab):
    """Start labs that end with the test, for tests that break something."""
    started = []

    def make(hosts=2, **options) -> Lab:
        started.append(Lab(hosts, **options))
        return started[-1].__enter__()

    yield make
    for lab in started:
        lab.close()


@pytest.fixture(scope="module")
def lab(requires_lab):
    """Provide two hosts for all tests of a file; leave them unchanged."""
    with Lab(2) as started:
        yield started
