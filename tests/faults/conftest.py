"""Runs with a fault in them, and the table of outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.schema.arms import parse_arms
from tests.faults.outcomes import Outcomes
from tests.faults.started import LAUNCHERS, RUN, StartedRun

OUTCOMES = pytest.StashKey[Outcomes]()


def pytest_addoption(parser):
    parser.addoption(
        "--outcomes",
        type=Path,
        metavar="FILE",
        help="put the table of outcomes, as observed, between its marks in FILE",
    )


def pytest_configure(config):
    config.stash[OUTCOMES] = Outcomes()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Write the table if every promise in it was kept."""
    file = session.config.getoption("--outcomes", None)
    if file and exitstatus == 0:
        session.config.stash[OUTCOMES].write(file)


@pytest.fixture
def record(pytestconfig):
    """Record the message of a failure, its exit code, and its seconds."""
    return pytestconfig.stash[OUTCOMES].outcome


@pytest.fixture(scope="session")
def data(any_data):
    dataset, folder = any_data
    return ["--data", f"{dataset}:folder={folder}"]


@pytest.fixture
def begin(tmp_path):
    """Start a command, and end what is left of it."""
    started = []

    def begin(data, *arguments, fault=None, command=RUN):
        started.append(StartedRun(tmp_path, data, arguments, fault, command))
        return started[0]

    yield begin
    for run in started:
        run.end()


@pytest.fixture
def start(begin, data, requires_backend):
    """Start a run of a launcher's arm with a fault."""

    def start(arm, *arguments, fault=None):
        arm = LAUNCHERS.get(arm, arm)
        for one in parse_arms([arm]):
            requires_backend(one.backend, **one.options)
        steps = [] if "--steps" in arguments else ["--steps", "60epochs"]
        return begin(data, "--backend", arm, *steps, *arguments, fault=fault)

    return start
