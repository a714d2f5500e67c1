"""Saving takes a small share of a long run."""

from __future__ import annotations

import pytest

from compare.experiment import rounds
from tests.unit.factories import a_cluster, a_launch, a_run


@pytest.fixture
def saved(monkeypatch):
    """Count saves, of a second for every launch."""
    now, counts = [0.0], []

    def write(_file, run):
        counts.append(len(run.launches))
        now[0] += len(run.launches)

    def launch(launches):
        now[0] += 50
        launches._keep([a_launch("ddp", len(launches.run.launches) + 1)])

    monkeypatch.setattr(rounds, "write_json", write)
    monkeypatch.setattr(rounds, "discard_noisy", lambda run: run)
    monkeypatch.setattr(rounds.time, "monotonic", lambda: now[0])
    return now, counts, launch


def test_saving_takes_a_hundredth_of_a_long_run(saved, tmp_path):
    now, counts, launch = saved
    launches = rounds.Launches(a_run({"ddp": []}), tmp_path, a_cluster(), None)
    for _ in range(400):
        launch(launches)
    assert counts[:3] == [1, 3, 9]
    assert sum(counts) < 0.025 * now[0], "the last save may be the largest"


def test_short_run_is_saved_after_every_launch(saved, tmp_path, monkeypatch):
    _, _, launch = saved
    written = []
    monkeypatch.setattr(rounds, "write_json", lambda _file, run: written.append(len(run.launches)))
    launches = rounds.Launches(a_run({"ddp": []}), tmp_path, a_cluster(), None)
    for _ in range(5):
        launch(launches)
    assert written == [1, 2, 3, 4, 5]
