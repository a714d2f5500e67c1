"""The turns of a cohort are settled before its first one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from compare.analysis.budget import TURN_SECONDS, TURNS
from compare.analysis.noise import launch_variance, turn_spreads
from compare.errors import LaunchError
from compare.experiment import rounds
from compare.experiment.rounds import choose_interleaving
from compare.experiment.schedule import (
    MOST_TURNS,
    SHORT_SECONDS,
    next_launches,
    open_comparisons,
    plan_turns,
    turn_seconds,
)
from compare.schema.results import Interleaved
from compare.schema.turns import turn_of
from tests.unit.factories import a_block, a_config, a_launch, a_rank, a_run

CLEAR, CLOSE = [5.0, 5.1, 5.2, 5.1, 5.0], [4.0, 6.3, 4.1, 6.0, 5.1]


def in_turns(milliseconds=None, **changes):
    return a_run(milliseconds, interleaved=Interleaved(mode="blocks"), complete=False, **changes)


def turns_of(run):
    return plan_turns(run, next_launches(run))


def test_every_arm_takes_one_turn_in_a_pass_and_each_second_is_reversed():
    """An effect of the place acts in both directions."""
    run = in_turns({"none": [], "ddp": [], "mpi": [], "manual": []}, config={"rounds": 3})
    passes = [[turn.arm for turn in turns_of(run) if turn.number == n] for n in range(1, TURNS + 1)]
    assert len(turns_of(run)) == 4 * TURNS
    assert [sorted(arms) for arms in passes] == [[0, 1, 2, 3]] * TURNS
    assert passes[1::2] == [arms[::-1] for arms in passes[::2]]


def test_turns_are_the_same_for_the_same_past():
    run = cohorts({"none": 0.05, "ddp": 0.05, "mpi": 0.2}, rounds=4)
    assert turns_of(run) == turns_of(run)


# ---- lengths ----


def test_time_goes_to_what_is_compared_by_its_spread():
    """The lengths that make s_a^2 / T_a + s_b^2 / T_b smallest."""
    seconds = turn_seconds(["none", "ddp", "mpi"], [("mpi", "ddp")], {"none": 9.0, "ddp": 0.1, "mpi": 0.3})
    assert sum(seconds.values()) == pytest.approx(3 * TURN_SECONDS), "a pass takes no longer"
    assert seconds["none"] == SHORT_SECONDS
    assert seconds["mpi"] / seconds["ddp"] == pytest.approx(3)
    best = 0.1**2 / seconds["ddp"] + 0.3**2 / seconds["mpi"]
    for shift in (-0.1, 0.1):
        assert best < 0.1**2 / (seconds["ddp"] + shift) + 0.3**2 / (seconds["mpi"] - shift)


def test_baseline_counts_in_every_comparison():
    comparisons = [(arm, "ddp") for arm in ("a", "b", "c", "d")]
    seconds = turn_seconds(["ddp", "a", "b", "c", "d"], comparisons, dict.fromkeys(["ddp", *"abcd"], 0.1))
    assert seconds["ddp"] / seconds["a"] == pytest.approx(2)


@pytest.mark.parametrize("comparisons", [[], [("mpi", "ddp")]])
def test_no_turn_is_shorter_than_a_short_one(comparisons):
    seconds = turn_seconds(["ddp", "mpi"], comparisons, {"ddp": 0.01, "mpi": 1.0})
    assert min(seconds.values()) >= SHORT_SECONDS


def test_settled_arms_give_their_time_to_the_open_ones():
    clear = {"none": [1.0] * 5, "ddp": CLEAR, "mpi": [1.0, 1.1, 1.0, 1.1, 1.2], "manual": CLOSE}
    run = in_turns(clear, config={"rounds": 99, "settle_seconds": 1e4})
    assert open_comparisons(run) == [("manual", "ddp")]
    of_fixed_length = in_turns(clear, config={"rounds": 9})
    assert open_comparisons(of_fixed_length) == [("mpi", "ddp"), ("manual", "ddp")], "its look is the end"
    assert open_comparisons(in_turns({"none": [], "ddp": [], "mpi": []})) == [("mpi", "ddp")]


# ---- numbers ----


def cohorts(spreads, *, rounds, launches=0.0, start=12.0, config=None):
    """Return a run whose turns spread by so much, from a fixed seed; a round takes ``start`` beside them."""
    random = np.random.default_rng(7)
    taken, now = [], 0.0
    for round_ in range(1, rounds + 1):
        for arm, spread in spreads.items():
            of_launch = random.normal(0, launches)
            blocks = [
                a_block(1, steps=600, turn=turn, wall_ns=round(6e8 * math.exp(of_launch + spread * noise)))
                for turn, noise in enumerate(random.normal(size=TURNS), start=1)
            ]
            seconds = start / len(spreads) + TURNS * TURN_SECONDS
            taken.append(
                a_launch(arm, round_, ranks=[a_rank(0, blocks=blocks)], started_at=now, seconds=seconds)
            )
            now += seconds
    settings = {"rounds": 50, "settle_seconds": 1e4} | (config or {})
    return in_turns({arm: [] for arm in spreads}, launches=taken, config=settings)


def passes_of(run):
    return max(turn.number for turn in turns_of(run))


NOISY_TURNS = {"none": 0.05, "ddp": 0.05, "mpi": 0.2}


def test_cohorts_have_as_many_turns_as_pay():
    """Launches that hardly spread take many turns, and turns that hardly spread take few."""
    noisy_launches = cohorts({"none": 0.01, "ddp": 0.01, "mpi": 0.01}, rounds=6, launches=0.2)
    assert passes_of(cohorts(NOISY_TURNS, rounds=6)) > TURNS == passes_of(noisy_launches)
    assert passes_of(cohorts(NOISY_TURNS, rounds=6)) <= MOST_TURNS


@pytest.mark.parametrize(
    ("rounds", "limit", "more"),
    [
        pytest.param(6, {"settle_seconds": None}, False, id="no limit of time"),
        pytest.param(6, {"launch_timeout_seconds": 300.0}, True, id="a launch has time for all its turns"),
        pytest.param(6, {"launch_timeout_seconds": 8.0}, False, id="a longer launch would be ended"),
        pytest.param(2, {"settle_seconds": 900.0}, True, id="five longer cohorts fit into the time"),
        pytest.param(2, {"settle_seconds": 105.0}, False, id="five longer cohorts do not fit"),
    ],
)
def test_cohorts_take_more_turns_only_in_the_time_that_there_is(rounds, limit, more):
    assert (passes_of(cohorts(NOISY_TURNS, rounds=rounds, config=limit)) > TURNS) is more


@pytest.mark.parametrize("rounds", [0, 1])
def test_first_cohorts_know_no_spread(rounds):
    run = cohorts(NOISY_TURNS, rounds=rounds)
    assert passes_of(run) == TURNS
    of_arm = {turn.arm: turn.seconds for turn in turns_of(run)}
    assert sorted(of_arm.values()) == pytest.approx([SHORT_SECONDS, 0.875, 0.875])


def test_spread_of_one_arm_is_separated_from_that_of_others():
    run = cohorts({"none": 0.02, "ddp": 0.05, "mpi": 0.2}, rounds=60)
    found = turn_spreads(run)
    one_second = math.sqrt(0.6)
    assert found["mpi"] == pytest.approx(0.2 * one_second, rel=0.1)
    assert found["ddp"] == pytest.approx(0.05 * one_second, rel=0.25)
    assert found["none"] == pytest.approx(found["mpi"] / 4, rel=0.01), "never below a quarter of the largest"


def test_two_arms_do_not_tell_which_one_is_noisy():
    found = turn_spreads(cohorts({"ddp": 0.02, "mpi": 0.2}, rounds=9))
    assert found["ddp"] == pytest.approx(found["mpi"], rel=0.02)


@pytest.mark.parametrize("launches", [0.0, 0.1])
def test_variance_of_launches_is_what_turns_leave(launches):
    run = cohorts({"none": 0.05, "ddp": 0.05, "mpi": 0.1}, rounds=100, launches=launches)
    assert launch_variance(run, "mpi", "ddp") == pytest.approx(2 * launches**2, abs=0.006)
    assert launch_variance(cohorts({"ddp": 0.05, "mpi": 0.1}, rounds=1), "mpi", "ddp") is None


@pytest.mark.parametrize(("step_seconds", "expected"), [(0.001, (100, 600)), (0.1, (1, 6)), (3.0, (1, 1))])
def test_turn_has_whole_steps(step_seconds, expected):
    turn = turn_of(1, lead_seconds=0.1, seconds=0.7, step_seconds=step_seconds)
    assert (turn.untimed_steps, turn.timed_steps) == expected


@pytest.mark.parametrize(
    ("arms", "asked", "mode"),
    [
        ("none,ddp", "auto", "blocks"),
        ("ddp", "auto", "launches"),
        ("none,ddp", "launches", "launches"),
        ("ddp", "blocks", "blocks"),
    ],
)
def test_auto_takes_turns_if_there_are_several_arms(arms, asked, mode):
    assert choose_interleaving(a_config(arms, interleave=asked)).mode == mode


def test_cohort_has_every_arm_once():
    run = in_turns({"none": [1.0], "ddp": [2.0]}, config={"rounds": 2})
    planned = next_launches(run)
    assert sorted(one.arm.label for one in planned) == ["ddp", "none"]
    assert [(one.number, one.round) for one in planned] == [(3, 2), (4, 2)]
    assert next_launches(msgspec.structs.replace(run, launches=run.launches * 2)) == []


class FailingCohort:
    """A cohort in which the second arm fails on its GPU."""

    side_by_side = True

    def __init__(self, *_given, **_more):
        self.current = None

    def carry_out(self, planned, _turns):
        self.current = planned[1]
        raise LaunchError("mpi: rank 0 on here failed.", found="OutOfMemoryError: CUDA out of memory.")


def a_failing_round(monkeypatch, folder, device="cuda", asked="auto", rounds_done=0):
    """Return the round whose second arm fails, and what the user is shown."""
    monkeypatch.setattr(rounds, "Cohort", FailingCohort)
    shown = []
    config = {"device": device, "interleave": asked}
    run = in_turns({"ddp": [1.0] * rounds_done, "mpi": [1.0] * rounds_done}, config=config)
    observer = SimpleNamespace(not_in_turns=shown.append)
    return rounds.Rounds(run, folder, SimpleNamespace(job=None), observer), shown


def test_arm_that_fails_beside_others_on_a_gpu_is_tried_alone(monkeypatch, tmp_path):
    going, shown = a_failing_round(monkeypatch, tmp_path)
    going.carry_out(next_launches(going.run))
    why = "Beside other arms on a GPU: mpi: rank 0 on here failed. OutOfMemoryError: CUDA out of memory."
    assert going.run.interleaved == Interleaved(mode="launches", why=why)
    assert shown == [why]
    assert len(next_launches(going.run)) == 1


@pytest.mark.parametrize("changes", [{"rounds_done": 1}, {"asked": "blocks"}, {"device": "cpu"}])
def test_arm_that_fails_in_turns_is_not_tried_alone_without_need(monkeypatch, tmp_path, changes):
    """After the first round it is not: what fitted once fits again."""
    going, _ = a_failing_round(monkeypatch, tmp_path, **changes)
    planned = next_launches(going.run)
    with pytest.raises(LaunchError):
        going.carry_out(planned)
    assert going.current == planned[1]
