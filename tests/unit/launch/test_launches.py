"""Test the order in which launches start and leave, what starts them again, and how long they may take."""

from __future__ import annotations

import math
import os
import signal
import time
from types import SimpleNamespace

import msgspec
import pytest

from compare.errors import LaunchError, StalledError
from compare.launch import launches
from compare.launch.launches import PORT_TAKEN, Cohort, launch_arm
from compare.launch.monitor import SUCCEEDED, Ending
from compare.schema.job import Planned
from compare.schema.turns import PlannedTurn, Turn
from tests.unit.factories import a_launch, a_run

TIMEOUT = 0.5
ARMS = ("none", "ddp", "mpi")


class ALaunch:
    """A launch without processes, which notes each order, and whose ranks wait again a while after it."""

    commands, files = (), None

    def __init__(self, planned=None, told=None, *, turn_seconds=0.0, orders=math.inf, fails=False):
        self.planned = planned
        self.monitor = self
        self.progress = {}
        self.restarted_because = ""
        self.waited_seconds = 0.0
        self.ended_for = None
        self.fails = fails
        self.is_over = False
        self.others = []
        """The launches of the same cohort."""
        self.read_beside = None
        """The launches that had not ended when the results of this one were read; None before."""
        self.port_taken = True
        self.happens = lambda: None
        self._told = [] if told is None else told
        self._turn_seconds = turn_seconds
        self._orders_left = orders
        self._waits_at = 0.0

    def prepare(self, *, restarted_because):
        self.restarted_because = restarted_because
        self.fails = self.fails == "always"

    def port_was_taken(self):
        return self.port_taken

    def begin(self):
        self._told.append(f"{self.planned.label} starts")
        self.happens()

    def require_memory_left(self, _others, _arms):
        self._told.append("room?")

    def go(self, turn):
        self._told.append(f"{self.planned and self.planned.label} {turn.number or 'goes on'}")
        self._orders_left -= 1
        self._waits_at = time.monotonic() + self._turn_seconds

    def is_waiting(self):
        return time.monotonic() >= self._waits_at

    def step_seconds(self):
        return 0.01

    def ending(self):
        if self.fails:
            return Ending(1)
        return None if self._orders_left else Ending(0)

    def tick(self):
        return True

    def ask_to_end(self):
        pass

    def end(self):
        self.is_over = True

    def conclude(self, _kind, ending=SUCCEEDED):
        self.ended_for = ending
        self.read_beside = [other.planned.label for other in self.others if not other.is_over]
        if ending.timed_out:
            raise StalledError("It took too long.")
        if ending.status:
            raise LaunchError("It failed.")
        return self.planned.label


class Nothing:
    """An observer that does nothing."""

    def __getattr__(self, _name):
        return lambda *_: None


@pytest.fixture(autouse=True)
def wait(monkeypatch):
    """Wait without agents."""

    def exchange_until(_agents, has_come, seconds):
        until = time.monotonic() + seconds
        while not has_come() and time.monotonic() < until:
            time.sleep(0.01)

    monkeypatch.setattr(launches, "exchange_until", exchange_until)


# ---- one launch by itself ----


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Return a function that launches an arm, and notes what was reported."""

    def launched(**changes):
        reported = []

        def prepare(_settings, planned):
            made = ALaunch(planned, reported, orders=0)
            vars(made).update(changes)
            return made

        monkeypatch.setattr(launches, "RunningLaunch", prepare)
        monkeypatch.setattr(launches, "stop_until_continued", lambda: reported.append("stops"))
        observer = Nothing()
        observer.launch_restarts = lambda _, why: reported.append(why)
        run = a_run()
        cluster = SimpleNamespace(all_agents=())
        return lambda: launch_arm(
            run, Planned(1, 1, run.config.arms[1]), tmp_path, cluster, observer
        ), reported

    return launched


@pytest.mark.parametrize(("taken", "times"), [(True, 2), (False, 1)])
def test_launch_whose_port_was_taken_starts_once_more(launch, taken, times):
    launched, reported = launch(fails="always", port_taken=taken)
    with pytest.raises(LaunchError, match="It failed"):
        launched()
    assert reported == ["ddp starts", PORT_TAKEN, "ddp starts"][: 2 * times - 1]


def test_launch_suspended_by_ctrl_z_starts_again_without_its_old_files(launch):
    """It does so as often as Ctrl-Z comes."""
    starts = []

    def suspend_twice():
        starts.append(1)
        if len(starts) < 3:
            os.kill(os.getpid(), signal.SIGTSTP)
            time.sleep(10)

    launched, reported = launch(happens=suspend_twice)
    assert launched() == "ddp"
    again = ["stops", "this program was suspended (Ctrl-Z)", "ddp starts"]
    assert reported == ["ddp starts", *again, *again]
    assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL


# ---- how long turns may take ----


@pytest.fixture
def cohort(tmp_path):
    run = a_run(config={"launch_timeout_seconds": TIMEOUT})
    return Cohort(run, tmp_path, SimpleNamespace(all_agents=()), Nothing())


def a_turn(arm=0):
    return PlannedTurn(arm=arm, number=1, lead_seconds=0.0, seconds=0.1)


def take(cohort, *alive):
    for launch in alive:
        cohort._go_and_wait(launch, Turn(number=1, timed_steps=10))


@pytest.mark.parametrize("turn_seconds", [0.2, 2 * TIMEOUT])
def test_turns_of_a_launch_that_together_take_too_long_end_it(cohort, turn_seconds):
    """A short turn is over at the first look."""
    launch = ALaunch(turn_seconds=turn_seconds)
    launch.port_taken = False
    cohort.alive.append(launch)
    began = time.monotonic()
    with pytest.raises(StalledError):
        take(cohort, *[launch] * 20)
    assert launch.ended_for.timed_out
    assert TIMEOUT < launch.ended_for.seconds <= time.monotonic() - began < TIMEOUT + 1.0


def test_turns_of_other_launches_do_not_count(cohort):
    cohort.alive += [ALaunch(turn_seconds=0.2), ALaunch(turn_seconds=0.2)]
    take(cohort, *cohort.alive * 2)
    assert [launch.ended_for for launch in cohort.alive] == [None, None]


# ---- starting and leaving ----


@pytest.fixture
def carry_out(tmp_path, monkeypatch):
    """Return a function that carries out a cohort, and returns the orders to its launches."""

    def carried_out(*, later, at_once=2, port_taken=()):
        told, made = [], []

        def prepare(settings, planned):
            assert settings.in_turns
            # Four orders: warm-up, one turn, the end of it, and leaving.
            made.append(ALaunch(planned, told, orders=4, fails=planned.label in port_taken))
            made[-1].started_alone, made[-1].others = settings.started_alone, made
            return made[-1]

        monkeypatch.setattr(launches, "RunningLaunch", prepare)
        run = msgspec.structs.replace(
            a_run({arm: [] for arm in ARMS}), launches=[a_launch()] if later else []
        )
        planned = [Planned(number, 2, arm) for number, arm in enumerate(run.config.arms, start=4)]
        cluster = SimpleNamespace(launches_at_once=lambda: at_once, all_agents=())
        cohort = Cohort(run, tmp_path, cluster, Nothing())
        assert cohort.carry_out(planned, [a_turn(arm) for arm in (2, 0, 1)]) == list(ARMS)
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
def test_later_cohort_starts_launches_side_by_side_and_ends_them_so(carry_out, at_once, first):
    told, made = carry_out(later=True, at_once=at_once)
    assert told[: len(first)] == first
    assert told[3:6] == [f"{arm} goes on" for arm in ARMS], "each warms up alone, when all have joined"
    assert told[6:9] == ["mpi 1", "none 1", "ddp 1"]
    assert told[9:] == [f"{arm} goes on" for arm in ARMS] * 2
    assert [launch.read_beside for launch in made] == [[], [], []], "ranks that still end need messages"
    assert not any(launch.started_alone for launch in made)


@pytest.mark.parametrize("later", [False, True])
def test_launch_of_a_cohort_whose_port_was_taken_starts_once_more(carry_out, later):
    told, made = carry_out(later=later, port_taken=("ddp",))
    assert told.count("ddp starts") == 2
    assert [launch.planned.label for launch in made if launch.restarted_because] == ["ddp"]
    assert [line for line in told if line.endswith(" 1")] == ["mpi 1", "none 1", "ddp 1"]
