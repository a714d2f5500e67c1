"""``ringside rehearse``: what it refuses, and what the command inside gets."""

from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from compare.cli.main import app
from compare.cli.requests import REHEARSED
from compare.errors import UsageError
from compare.experiment import run
from compare.launch.engines import Allocation, Carrier, rehearsal
from compare.schema.hosts import Host


@pytest.fixture
def made(monkeypatch):
    """Make hosts without a process, and note how many."""
    asked = []

    @contextmanager
    def open_rehearsal(hosts, slots, link):
        asked.append((hosts, slots, str(link)))
        yield Allocation(tuple(Host(f"rehearsal-{n}", slots) for n in (1, 2)), Carrier(), rehearsed=link)

    monkeypatch.setattr(rehearsal, "open_rehearsal", open_rehearsal)
    return asked


def call(*arguments):
    done = CliRunner().invoke(app, ["rehearse", *arguments])
    assert REHEARSED.get() is None
    return done


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--", "report", "runs/x"], "cannot be report"),
        (["--hosts", "0", "--", "run"], "--hosts cannot be 0"),
        (["--slots", "0", "--", "run"], "--slots cannot be 0"),
        (["--link", "fast", "--", "run"], "--link cannot be"),
        (["--", "run", "-H", "n1"], "makes its own hosts"),
        (["--", "doctor", "--hostfile", "hosts.txt"], "makes its own hosts"),
        (["--", "run", "-np", "5"], "5 ranks do not fit"),
    ],
)
def test_rehearse_refuses_what_it_cannot_do(made, arguments, says):
    done = call(*arguments)
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
    assert done.exception.remedy


@pytest.mark.parametrize("dashes", [["--"], []])
def test_rehearse_gives_its_hosts_to_the_command_inside(made, monkeypatch, dashes):
    requests = []

    def compare_arms(request, *_):
        requests.append(request)
        raise UsageError("enough")

    monkeypatch.setattr(run, "compare_arms", compare_arms)
    monkeypatch.setattr("compare.experiment.compare_arms", compare_arms, raising=False)
    arguments = ["--hosts", "2", "--slots", "2", "--link", "1gbit,2ms"]
    call(*arguments, *dashes, "run", "--backend", "ddp", "-np", "3")
    assert made == [(2, 2, "1 gbit/s, 2 ms")]
    (request,) = requests
    hosts = [(host.name, host.slots) for host in request.allocation.hosts]
    assert hosts == [("rehearsal-1", 2), ("rehearsal-2", 1)]
    assert request.allocation.rehearsed.bits_per_second == 10**9
