"""Test what is left of a time budget and of the cores."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.analysis.budget import fullest_host, has_time_left, is_oversubscribed, looks
from compare.analysis.verdict import Look, levels
from compare.schema.hosts import Host
from tests.unit.factories import a_launch, a_run


def a_run_of_rounds(seconds, *, again=(), budget, complete=False, rounds=99):
    """Return rounds of two launches; those in ``again`` were discarded once."""
    now, launches, discarded = 0.0, [], []

    def take(round_):
        nonlocal now
        taken = []
        for arm in ("ddp", "mpi"):
            taken.append(a_launch(arm, round_, started_at=now, seconds=seconds))
            now += seconds
        return taken

    for round_ in range(1, rounds + 1):
        if round_ in again:
            discarded += take(round_)
        launches += take(round_)
    config = {"rounds": 1000, "budget_seconds": budget}
    return a_run(
        {"ddp": [], "mpi": []}, config=config, launches=launches, discarded=discarded, complete=complete
    )


@settings(deadline=None, max_examples=60)
@given(st.integers(5, 9), st.sets(st.integers(1, 9), max_size=3), st.floats(1, 40), st.floats(10, 900))
def test_look_has_alpha_left_if_there_is_time_for_a_round(rounds, again, seconds, budget):
    run = a_run_of_rounds(seconds, again=again, budget=budget, rounds=rounds)
    last = looks(run)[-1]
    assert last.rounds == rounds
    assert (last.planned > rounds) is has_time_left(run)


def test_last_look_of_a_run_that_ended_early_spends_the_rest():
    running = a_run_of_rounds(10, budget=135, rounds=6)
    assert looks(running)[-1] == Look(6, 6)
    cut_short = a_run_of_rounds(10, budget=145, rounds=6, complete=True)
    assert looks(cut_short)[-2:] == [Look(6, 7), Look(6, 6)]
    assert sum(levels(looks(cut_short))) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("slots", "cores", "fullest", "too_many"),
    [([8, 2], [8, 2], (8, 8), False), ([8, 2], [8, 1], (2, 1), True), ([1, 3], [2, 2], (3, 2), True)],
)
def test_oversubscribed_host_is_judged_by_its_own_cores(slots, cores, fullest, too_many):
    hosts = [Host(f"n{number}", count) for number, count in enumerate(slots)]
    run = a_run(config={"ranks": sum(slots)}, hosts=hosts, cores=min(cores), cores_by_host=cores)
    assert fullest_host(run) == fullest
    assert is_oversubscribed(run) is too_many


@pytest.mark.parametrize(
    ("slots", "threads", "cores", "too_many"),
    [
        ((2,), 1, 2, False),
        ((2,), 2, 4, False),
        ((2,), 2, 2, True),
        ((2,), 1, 1, True),
        ((2, 2), 1, 2, False),
        ((3, 1), 1, 2, True),
    ],
)
def test_oversubscribed_host_has_more_threads_than_cores(slots, threads, cores, too_many):
    hosts = [Host(f"n{number}", count) for number, count in enumerate(slots)]
    config = {"ranks": sum(slots), "threads_per_rank": threads}
    assert is_oversubscribed(a_run(config=config, hosts=hosts, cores=cores)) is too_many
