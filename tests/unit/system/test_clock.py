"""The clock of a run, which cannot be set."""

import time

import pytest

from compare.system import clock
from compare.worker.meters import StartUp


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_clock_that_is_set_moves_no_time_of_a_run(monkeypatch, jump):
    before, set_at = clock.unix_time(), time.time()
    monkeypatch.setattr(time, "time", lambda: set_at + jump)
    assert 0 <= clock.unix_time() - before < 60


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_clock_that_is_set_moves_no_moment_of_a_start(monkeypatch, jump):
    set_at = time.time()
    start_up = StartUp(set_at - 1.5)
    monkeypatch.setattr(time, "time", lambda: set_at + jump)
    with start_up.left_out():
        pass
    for moment in ("data_ready", "joined", "replica_ready", "first_step_done"):
        start_up.mark(moment)
    moments = start_up.read()
    assert 1.5 <= moments.started <= moments.data_ready <= moments.first_step_done < 60
