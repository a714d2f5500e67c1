"""Faults on some of 64 hosts, whose agents are stand-ins that run no rank."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil
import pytest

from compare.errors import HostError, LaunchError, RingsideError, StalledError
from compare.schema.store import read_run
from tests.bench.host_agents import Plan, name_of
from tests.bench.stand_ins import compare_on, stand_in_hosts
from tests.unit.factories import a_block, a_rank

HOSTS, ARMS, TURNS = 64, ("none", "ddp"), 4
FAULTY = name_of(37)
NAMED_SECONDS = 30


class Nothing:
    """An observer that does nothing."""

    def __getattr__(self, _name):
        return lambda *_: None


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path, monkeypatch):
    """Require that no stand-in and no folder of theirs is left; they and their carriers are descendants."""
    with tempfile.TemporaryDirectory(prefix="many-") as folder:  # short, because a socket's path is limited
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        monkeypatch.undo()
        assert psutil.Process().children(recursive=True) == []
        assert list(Path(folder).iterdir()) == []


@pytest.fixture
def carry_out(tmp_path):
    """Return a function that compares two arms in two rounds, with faults of hosts in the second round."""

    def carry_out(faults):
        blocks = [a_block(10.0, turn=turn) for turn in range(1, TURNS + 1)]
        plan = Plan(
            folder=str(tmp_path),
            ranks=2,
            results=(a_rank(0, blocks=blocks), a_rank(1, blocks=blocks)),
            stall_seconds=5.0,
            faults=faults,
            first_faulty=len(ARMS) + 1,
        )
        with stand_in_hosts(HOSTS, plan) as allocation:
            compare_on(allocation, ",".join(ARMS), Nothing(), tmp_path / "run", rounds=2)

    return carry_out


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("dies", HostError, f"Host {FAULTY} cannot be reached."),
        ("hangs", HostError, f"Host {FAULTY} did not answer"),
        ("stands still", StalledError, f"rank 74 on {FAULTY} no longer makes progress"),
        ("sends garbage", HostError, f"Host {FAULTY}: what it sent does not come from Ringside's agent."),
        ("sends another rank's result", LaunchError, f"what rank 74 on {FAULTY} left is not its result."),
    ],
)
def test_fault_on_one_of_many_hosts_is_named_and_finished_rounds_are_kept(
    carry_out, tmp_path, fault, error, says
):
    with pytest.raises(RingsideError) as caught:
        carry_out({FAULTY: fault})
    took = time.monotonic() - float((tmp_path / "fault").read_text())
    assert isinstance(caught.value, error), caught.value
    assert says in caught.value.what
    assert len(str(caught.value).splitlines()) < 12
    assert len(str(caught.value)) < 2000, "64 hosts are not listed"
    assert took < NAMED_SECONDS
    run = read_run(tmp_path / "run")
    assert [launch.round for launch in run.launches] == [1] * len(ARMS)
    assert says in run.failure.message


@pytest.mark.long
def test_host_that_dies_is_named_beside_others_that_hang_or_are_late(carry_out, tmp_path):
    faults = {name_of(12): "is late", FAULTY: "dies", name_of(50): "hangs", name_of(63): "is late"}
    with pytest.raises(HostError, match=f"Host {FAULTY} cannot be reached.") as caught:
        carry_out(faults)
    assert time.monotonic() - float((tmp_path / "fault").read_text()) < NAMED_SECONDS
    assert name_of(12) not in str(caught.value)
    assert len(read_run(tmp_path / "run").launches) == len(ARMS)


@pytest.mark.long
def test_host_that_answers_late_is_waited_for(carry_out, tmp_path):
    carry_out({FAULTY: "is late"})
    run = read_run(tmp_path / "run")
    assert run.complete
    assert len(run.launches) == 2 * len(ARMS)
