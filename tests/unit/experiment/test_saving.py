"""Saving takes a small share of a long run."""

from __future__ import annotations

from compare.experiment import rounds
from tests.unit.factories import a_cluster, a_launch, a_run


def saves_of(launches, folder, monkeypatch, *, seconds):
    """Return how many launches each save had, and the time in all.

    A launch takes 50 s, and a save takes that many seconds for every launch in it.
    """
    now, counts = [0.0], []

    def write(_file, run):
        counts.append(len(run.launches))
        now[0] += seconds * len(run.launches)

    monkeypatch.setattr(rounds, "write_json", write)
    monkeypatch.setattr(rounds, "discard_noisy", lambda run: run)
    monkeypatch.setattr(rounds.time, "monotonic", lambda: now[0])
    going = rounds.Rounds(a_run({"ddp": []}), folder, a_cluster(), None)
    for number in range(1, launches + 1):
        now[0] += 50
        going._keep([a_launch("ddp", number)])
    return counts, now[0]


def test_saving_takes_a_hundredth_of_a_long_run(tmp_path, monkeypatch):
    counts, took = saves_of(400, tmp_path, monkeypatch, seconds=1)
    assert counts[:3] == [1, 3, 9]
    assert sum(counts) < 0.025 * took, "the last save may be the largest"


def test_short_run_is_saved_after_every_launch(tmp_path, monkeypatch):
    assert saves_of(5, tmp_path, monkeypatch, seconds=0)[0] == [1, 2, 3, 4, 5]
