"""Test the order in which the launches of a round start and leave, and how long they may take."""

from __future__ import annotations

import time
from types import SimpleNamespace

import msgspec
import pytest

from compare.errors import LaunchError, StalledError
from compare.launch import alive
from compare.launch.cohort import Cohort
from compare.launch.processes import Ending
from compare.schema.job import Planned
from compare.schema.turns import PlannedTurn
from tests.unit.factories import a_launch, a_run

TIMEOUT = 0.5


def wait(has_come, seconds):
    until = time.monotonic() + seconds
    while not has_come() and time.monotonic() < until:
        time.sleep(0.01)


class ALaunch:
    """A launch whose ranks wait again a while after each turn."""

    def __init__(self, turn_seconds):
        self.planned = None
        self.monitor = self.place = self
        self.ended_for = None
        self._turn_seconds = turn_seconds
        self._waits_at = 0.0

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
    made = Cohort(run, tmp_path, SimpleNamespace(attend=wait), Nothing())
    made.alive = made._launches.alive
    return made


def a_turn():
    return PlannedTurn(arm=0, number=1, lead_seconds=0.0, seconds=0.1)


def take(cohort, launch, *, turns):
    for _ in range(turns):
        cohort._take(launch, a_turn())


@pytest.mark.parametrize("turn_seconds", [0.2, 2 * TIMEOUT])
def test_turns_of_a_launch_that_together_take_too_long_end_it(cohort, turn_seconds):
    """A short turn is over at the first look."""
    launch = ALaunch(turn_seconds)
    cohort.alive.append(launch)
    began = time.monotonic()
    with pytest.raises(StalledError):
        take(cohort, launch, turns=20)
    assert launch.ended_for.timed_out
    assert TIMEOUT < launch.ended_for.seconds <= time.monotonic() - began < TIMEOUT + 1.0


def test_turns_of_other_launches_do_not_count(cohort):
    launches = [ALaunch(0.2), ALaunch(0.2)]
    cohort.alive += launches
    for launch in launches * 2:
        cohort._take(launch, a_turn())
    assert [launch.ended_for for launch in launches] == [None, None]


# ---- starting and leaving ----

ARMS = ("none", "ddp", "mpi")


class ARecordedLaunch(ALaunch):
    """A launch that notes each order, and whose ranks follow it at once."""

    def __init__(self, told, planned, *, started_alone, restarted_because, port_taken=()):
        super().__init__(0.0)
        self.planned, self.commands, self.job = planned, [], None
        self.started_alone, self.restarted_because = started_alone, restarted_because
        self._told, self._fails = told, planned.label in port_taken and not restarted_because
        self._went = 0

    def begin(self, *_arguments, **_named):
        self._told.append(f"{self.planned.label} starts")

    def require_room(self, _others, _arms):
        self._told.append("room?")

    def go(self, turn):
        self._went += 1
        self._told.append(f"{self.planned.label} {turn.number or 'goes on'}")

    def ending(self):
        if self._fails:
            return Ending(1)
        return Ending(0) if self._went == self.waits else None

    waits = 4
    """Warm-up, one turn, the end of it, and leaving."""

    def conclude(self, ending: Ending):
        if ending.status:
            raise LaunchError("Its port was taken.")
        return self.planned.label


@pytest.fixture
def carry_out(tmp_path, monkeypatch):
    """Return a function that carries out a cohort, and returns the orders to its launches."""

    def carried_out(*, later, at_once=2, port_taken=()):
        told, made = [], []

        def prepare(_config, planned, *_arguments, in_turns, started_alone, restarted_because):
            assert in_turns
            made.append(
                ARecordedLaunch(
                    told,
                    planned,
                    started_alone=started_alone,
                    restarted_because=restarted_because,
                    port_taken=port_taken,
                )
            )
            return made[-1]

        monkeypatch.setattr(alive, "PreparedLaunch", prepare)
        monkeypatch.setattr(alive, "port_was_taken", lambda *_: True)
        run = msgspec.structs.replace(
            a_run({arm: [] for arm in ARMS}), launches=[a_launch()] if later else []
        )
        planned = [Planned(number, 2, arm) for number, arm in enumerate(run.config.arms, start=4)]
        cluster = SimpleNamespace(launches_at_once=lambda: at_once, attend=wait)
        turns = [PlannedTurn(arm=arm, number=1, lead_seconds=0.0, seconds=0.1) for arm in (2, 0, 1)]
        launches = Cohort(run, tmp_path, cluster, Nothing()).carry_out(planned, turns)
        assert launches == list(ARMS)
        return told, made

    return carried_out


def test_first_cohort_starts_and_warms_up_one_launch_after_another(carry_out):
    told, made = carry_out(later=False)
    starts = [f"{arm} {does}" for arm in ARMS for does in ("starts", "goes on")]
    assert [line for line in told if line != "room?"][:6] == starts
    assert told.count("room?") == 2
    assert all(launch.started_alone for launch in made)


@pytest.mark.parametrize(
    ("at_once", "first"),
    [(1, ["none starts"]), (2, ["none starts", "ddp starts"]), (5, [f"{arm} starts" for arm in ARMS])],
)
def test_later_cohort_starts_launches_side_by_side(carry_out, at_once, first):
    told, made = carry_out(later=True, at_once=at_once)
    assert told[: len(first)] == first
    assert told[3:6] == [f"{arm} goes on" for arm in ARMS], "each warms up alone, when all have joined"
    assert told[6:9] == ["mpi 1", "none 1", "ddp 1"]
    assert not any(launch.started_alone for launch in made)


def test_launches_measure_to_their_end_one_by_one_and_leave_together(carry_out):
    told, _ = carry_out(later=True)
    assert told[9:] == [f"{arm} goes on" for arm in ARMS] * 2


@pytest.mark.parametrize("later", [False, True])
def test_launch_whose_port_was_taken_starts_once_more(carry_out, later):
    told, made = carry_out(later=later, port_taken=("ddp",))
    assert told.count("ddp starts") == 2
    assert [launch.planned.label for launch in made if launch.restarted_because] == ["ddp"]
    assert [line for line in told if line.endswith(" 1")] == ["mpi 1", "none 1", "ddp 1"]
