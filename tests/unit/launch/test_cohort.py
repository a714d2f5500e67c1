"""Test how long the launches of a round may take."""

from __future__ import annotations

import time

import pytest

from compare.errors import StalledError
from compare.launch.cohort import Cohort
from compare.launch.processes import Ending
from compare.schema.turns import PlannedTurn
from tests.unit.factories import a_run

TIMEOUT = 0.5


class ALaunch:
    """A launch whose ranks wait again a while after each turn."""

    def __init__(self, turn_seconds):
        self.planned = None
        self.monitor = self.place = self.cluster = self
        self.ended_for = None
        self._turn_seconds = turn_seconds
        self._waits_at = 0.0

    def attend(self, has_come, seconds):
        until = time.monotonic() + seconds
        while not has_come() and time.monotonic() < until:
            time.sleep(0.01)

    def go(self, _turn):
        self._waits_at = time.monotonic() + self._turn_seconds

    def is_waiting(self):
        return time.monotonic() >= self._waits_at

    def step_seconds(self):
        return 0.01

    def ending(self):
        return None

    def tick(self):
        return True

    def progress(self):
        return None

    def end(self):
        return None

    def conclude(self, ending: Ending):
        self.ended_for = ending
        raise StalledError("It took too long.")


class Nothing:
    """An observer that does nothing."""

    def __getattr__(self, _name):
        return lambda *_: None


@pytest.fixture
def cohort(tmp_path):
    run = a_run(config={"launch_timeout_seconds": TIMEOUT})
    return Cohort(run, tmp_path, [], Nothing())


def a_turn():
    return PlannedTurn(arm=0, number=1, lead_seconds=0.0, seconds=0.1)


def take(cohort, launch, *, turns):
    for _ in range(turns):
        cohort._take(launch, a_turn())


@pytest.mark.parametrize("turn_seconds", [0.2, 2 * TIMEOUT])
def test_turns_of_a_launch_that_together_take_too_long_end_it(cohort, turn_seconds):
    """A short turn is over at the first look."""
    launch = ALaunch(turn_seconds)
    cohort._alive.append(launch)
    began = time.monotonic()
    with pytest.raises(StalledError):
        take(cohort, launch, turns=20)
    assert launch.ended_for.timed_out
    assert TIMEOUT < launch.ended_for.seconds <= time.monotonic() - began < TIMEOUT + 1.0


def test_turns_of_other_launches_do_not_count(cohort):
    launches = [ALaunch(0.2), ALaunch(0.2)]
    cohort._alive += launches
    for launch in launches * 2:
        cohort._take(launch, a_turn())
    assert [launch.ended_for for launch in launches] == [None, None]
