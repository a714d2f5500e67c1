"""Test a launch by itself: its port, and Ctrl-Z."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest

from compare.errors import LaunchError
from compare.launch import alive, alone
from compare.launch.processes import Ending
from compare.schema.job import Planned
from tests.unit.factories import a_run


class ALaunch:
    """A launch that ends with a status as soon as it has begun."""

    commands, job = (), None

    def __init__(self, _config, planned, _cluster, files, _make_job, *, restarted_because, **_more):
        self.planned, self.files, self.restarted_because = planned, files, restarted_because
        self.place = self.monitor = self

    def begin(self, _commands, _job):
        self.files.directory.mkdir(parents=True)
        self.happens(self)

    def ending(self):
        return Ending(self.status)

    def tick(self):
        return True

    def ask_to_end(self):
        pass

    def end(self):
        return None

    def conclude(self, ending):
        if ending.status:
            raise LaunchError("It failed.")
        return "launched"


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Return a function that launches an arm, and notes each start and what was reported."""

    def launched(happens, *, status=0):
        reported = []
        own = {"happens": staticmethod(happens), "status": status}
        monkeypatch.setattr(alive, "PreparedLaunch", type("Own", (ALaunch,), own))
        cluster = SimpleNamespace(attend=lambda *_: None)
        observer = SimpleNamespace(
            launch_starts=lambda *_: reported.append("starts"),
            launch_restarts=lambda _, why: reported.append(why),
            rank_progressed=lambda *_: None,
        )
        monkeypatch.setattr(alone, "stop_until_continued", lambda: reported.append("stops"))
        run = a_run()
        planned = Planned(1, 1, run.config.arms[0])
        monkeypatch.setattr(alone.PreparedLaunch, "conclude", ALaunch.conclude)
        return alone.launch_arm(run, planned, tmp_path, cluster, observer), reported

    return launched


@pytest.mark.parametrize(("taken", "times"), [(True, 2), (False, 1)])
def test_launch_whose_port_was_taken_starts_once_more(launch, monkeypatch, taken, times):
    reasons = []
    monkeypatch.setattr(alive, "port_was_taken", lambda *_: taken)
    with pytest.raises(LaunchError, match="It failed"):
        launch(lambda one: reasons.append(one.restarted_because), status=1)
    assert reasons == ["", alive.PORT_TAKEN][:times]


def test_launch_suspended_by_ctrl_z_starts_again_without_its_old_files(launch):
    """It does so as often as Ctrl-Z comes."""
    starts = []

    def suspend_twice(_launch):
        starts.append(1)
        if len(starts) < 3:
            os.kill(os.getpid(), signal.SIGTSTP)
            time.sleep(10)

    returned, reported = launch(suspend_twice)
    assert returned == "launched"
    again = ["stops", "this program was suspended (Ctrl-Z)", "starts"]
    assert reported == ["starts", *again, *again]
    assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
