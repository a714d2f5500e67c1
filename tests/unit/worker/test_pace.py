"""How long the watchdog of a proof lets a rank be."""

from types import SimpleNamespace

import pytest

from compare.worker import pace as module
from compare.worker.pace import WatchedPace
from compare.worker.watchdog import WAIT_SECONDS

STALL = 10.0


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves on, and the limits that a watchdog is given."""
    known = SimpleNamespace(now=0.0, limits=[], waits=0.0)
    monkeypatch.setattr(module, "monotonic", lambda: known.now)
    return known


def a_pace(clock, rank=0, **known):
    def note(stage, *, limit_seconds):
        assert stage == "parity"
        clock.limits.append(limit_seconds)

    def barrier():
        clock.now += clock.waits

    watchdog = SimpleNamespace(stall_seconds=STALL, note=note)
    return WatchedPace(watchdog, SimpleNamespace(rank=rank, world_size=8, barrier=barrier), **known)


def test_pass_may_take_the_stall_longer_than_the_one_before_it(clock):
    pace = a_pace(clock)
    for seconds in (6.0, 1.0, 0.5):
        pace.note()
        clock.now += seconds
    pace.note(8)
    assert clock.limits == [STALL, STALL + 6, STALL + 1, STALL + 8 * 0.5]


def test_making_of_a_shard_is_no_pass(clock):
    pace = a_pace(clock)
    for passes, seconds in ((1, 6.0), (0, 0.1), (0, 0.1), (1, 6.0)):
        pace.note(passes)
        clock.now += seconds
    assert clock.limits == [STALL, STALL + 6, STALL + 6, STALL + 6]


@pytest.mark.parametrize(("rank", "limits"), [(0, [STALL + 2, STALL + 16]), (3, [WAIT_SECONDS] * 2)])
def test_rank_that_waits_for_the_first_has_no_limit_and_learns_nothing(clock, rank, limits):
    pace = a_pace(clock, rank)
    pace.note()
    clock.now += 2
    clock.waits = 100.0
    pace.meet()
    pace.meet(8)
    pace.note()
    assert clock.limits == [STALL, *limits, STALL + 2]


def test_first_step_may_compile(clock):
    pace = a_pace(clock, first_seconds=300.0)
    for step in (0, 1):
        pace.step(step)
        pace.note()
        clock.now += 1
    assert clock.limits == [300.0, STALL + 1]


def test_pace_that_knows_a_pass_begins_with_it(clock):
    a_pace(clock, pass_seconds=4.0).note()
    assert clock.limits == [STALL + 4]
