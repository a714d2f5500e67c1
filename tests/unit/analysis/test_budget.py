"""Test what is left of the time and of the cores."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compare.analysis.budget import (
    FIRST_LOOK,
    Look,
    elapsed_seconds,
    expected_seconds,
    fullest_host,
    has_time_left,
    is_oversubscribed,
    least_seconds,
    levels,
    looks,
    planned_rounds,
    seconds_left,
)
from compare.schema.hosts import Host, Link, Network
from compare.schema.results import Interleaved
from tests.unit.factories import a_launch, a_run

LIMITS = st.sampled_from(["budget_seconds", "settle_seconds"])


def a_run_of_rounds(
    seconds, *, again=(), budget=None, limit="budget_seconds", complete=False, rounds=99, most=1000
):
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
    config = {"rounds": most, limit: budget}
    return a_run(
        {"ddp": [], "mpi": []}, config=config, launches=launches, discarded=discarded, complete=complete
    )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(5, 30), st.sets(st.integers(1, 9), max_size=3), st.floats(1, 40), st.floats(10, 900), LIMITS
)
def test_looks_are_few_and_have_alpha_left_while_there_is_time(rounds, again, seconds, budget, limit):
    run = a_run_of_rounds(seconds, again=again, budget=budget, rounds=rounds, limit=limit)
    *_, last = found = looks(run)
    assume(found != [Look(FIRST_LOOK - 1, FIRST_LOOK - 1)])  # the end is too near for the first look
    assert {look.rounds for look in found} <= {5, 8, 12, 18, 27}
    assert (planned_rounds(run) > rounds) is has_time_left(run)
    if last.rounds == rounds:
        assert (last.planned > rounds) is has_time_left(run)
    ended = looks(msgspec.structs.replace(run, complete=True))
    assert ended[-1].rounds == rounds, "the end has a look"
    assert ended[: len(found)] == found, "what was looked at stays"
    assert sum(levels(ended)) <= 0.05 + 1e-12


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 9), st.sets(st.integers(1, 9), max_size=3), st.floats(1, 40), st.floats(10, 900))
def test_time_to_settle_is_a_budget_from_the_fifth_round_on(rounds, again, seconds, limit):
    """Five rounds follow in any time, and no launch is ended."""
    soft = a_run_of_rounds(seconds, again=again, budget=limit, rounds=rounds, limit="settle_seconds")
    hard = a_run_of_rounds(seconds, again=again, budget=limit, rounds=rounds)
    assert has_time_left(soft) is (rounds < FIRST_LOOK or has_time_left(hard))
    assert looks(soft) == looks(hard)
    assert seconds_left(soft, now=1e9) == math.inf


def test_expected_time_continues_the_pace_with_discarded_rounds():
    run = a_run_of_rounds(10, again={1}, rounds=1, most=7)
    assert elapsed_seconds(run) == 40
    assert [expected_seconds(run, rounds) for rounds in (1, 5, 7)] == [40, 120, 160]
    assert [planned_rounds(run), planned_rounds(a_run_of_rounds(10, rounds=0, budget=1))] == [7, 1000]
    assert planned_rounds(a_run_of_rounds(10, rounds=1, budget=100)) == 5
    assert planned_rounds(a_run_of_rounds(10, rounds=1, budget=30)) == 1
    assert planned_rounds(a_run_of_rounds(10, rounds=1, budget=30, limit="settle_seconds")) == FIRST_LOOK


def test_last_look_of_a_run_that_ended_early_spends_the_rest():
    running = a_run_of_rounds(10, budget=185, rounds=8)
    assert looks(running) == [Look(5, 9)], "the ninth round is near"
    assert looks(a_run_of_rounds(1, budget=12, rounds=5)) == [Look(4, 4)], "the sixth round is near"
    cut_short = a_run_of_rounds(10, budget=230, rounds=8, complete=True)
    assert looks(cut_short) == [Look(5, 11), Look(8, 11)], "figures may have ended it, so they add no share"
    later = a_run_of_rounds(10, budget=230, rounds=9, complete=True)
    assert looks(later)[-1] == Look(9, 9)
    assert sum(levels(looks(later))) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("slots", "threads", "cores", "fullest", "too_many"),
    [
        ([8, 2], 1, [8, 2], (8, 8), False),
        ([8, 2], 1, [8, 1], (2, 1), True),
        ([1, 3], 1, [2, 2], (3, 2), True),
        ([2], 2, [4], (2, 4), False),
        ([2], 2, [2], (2, 2), True),
        ([2, 2], 1, [], (2, 2), False),
        ([3, 1], 1, [], (3, 2), True),
    ],
)
def test_oversubscribed_host_has_more_threads_than_cores_of_its_own(slots, threads, cores, fullest, too_many):
    """A run may know no cores but the fewest of any host."""
    hosts = [Host(f"n{number}", count) for number, count in enumerate(slots)]
    config = {"ranks": sum(slots), "threads_per_rank": threads}
    run = a_run(config=config, hosts=hosts, cores=min(cores, default=2), cores_by_host=cores)
    assert fullest_host(run) == fullest
    assert is_oversubscribed(run) is too_many


def test_oversubscribed_rehearsal_counts_the_ranks_of_all_hosts():
    hosts, network = [Host(f"n{number}", 1) for number in range(3)], Network(rehearsed=Link())
    run = a_run(config={"ranks": 3}, hosts=hosts, cores=2, cores_by_host=[2, 2, 2], network=network)
    assert fullest_host(run) == (3, 2)
    assert is_oversubscribed(run)


@pytest.mark.parametrize(
    ("mode", "cores", "seconds"),
    [
        ("launches", 2, 5 * 3 * 3.0),
        ("blocks", 2, 5 * 3 * 2.8 + 9.0 + 4 * 6.0),
        ("blocks", 1, 5 * 3 * 2.8 + 5 * 9.0),
        ("blocks", 64, 5 * 3 * 2.8 + 9.0 + 4 * 3.0),
    ],
)
def test_least_time_counts_starts_side_by_side_once(mode, cores, seconds):
    changes = {"interleaved": Interleaved(mode=mode), "cores_by_host": [cores]}
    run = a_run({"none": [], "ddp": [], "mpi": []}, config={"ranks": 2}, **changes)
    assert least_seconds(run, 5) == pytest.approx(seconds)
