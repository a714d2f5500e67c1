"""The turns of a cohort are settled before its first one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest

from compare.analysis.verdict import FIRST_LOOK
from compare.errors import LaunchError
from compare.experiment import rounds
from compare.experiment.rounds import choose_interleaving
from compare.experiment.schedule import TURN_SECONDS, TURNS, next_cohort, plan_turns, turn_seconds
from compare.schema.results import Interleaved
from compare.schema.turns import turn_of
from tests.unit.factories import a_config, a_run

CLEAR, CLOSE = [5.0, 5.1, 5.2, 5.1, 5.0], [4.0, 6.3, 4.1, 6.0, 5.1]


def in_turns(milliseconds=None, **changes):
    return a_run(milliseconds, interleaved=Interleaved(mode="blocks"), complete=False, **changes)


def turns_of(run):
    return plan_turns(run, next_cohort(run))


def test_every_arm_takes_one_turn_in_a_pass():
    run = in_turns({"none": [], "ddp": [], "mpi": []}, config={"rounds": 3})
    turns = turns_of(run)
    assert Counter(turn.arm for turn in turns) == dict.fromkeys(range(3), TURNS)
    for number in range(1, TURNS + 1):
        assert sorted(turn.arm for turn in turns if turn.number == number) == [0, 1, 2]


def test_every_second_pass_is_the_first_in_reverse():
    """An effect of the place acts in both directions."""
    run = in_turns({"none": [], "ddp": [], "mpi": [], "manual": []}, config={"rounds": 3})
    passes = [[turn.arm for turn in turns_of(run) if turn.number == n] for n in range(1, TURNS + 1)]
    assert passes[1] == passes[0][::-1]
    assert passes[3] == passes[2][::-1]


def test_turns_are_the_same_for_the_same_past():
    run = in_turns({"none": [1.0], "ddp": [2.0], "mpi": [3.0]}, config={"rounds": 3})
    assert turns_of(run) == turns_of(run)


def test_arms_without_a_verdict_get_the_time_of_settled_ones():
    milliseconds = {"none": [1.0] * 5, "ddp": CLEAR, "mpi": [1.0, 1.1, 1.0, 1.1, 1.2], "manual": CLOSE}
    seconds = turn_seconds(in_turns(milliseconds, config={"rounds": 9}))
    assert sum(seconds.values()) == pytest.approx(4 * TURN_SECONDS), "a pass takes no longer"
    assert seconds["mpi"] == TURN_SECONDS / 2
    assert seconds["manual"] == seconds["ddp"] > TURN_SECONDS
    assert seconds["none"] == TURN_SECONDS


@pytest.mark.parametrize("rounds", range(FIRST_LOOK))
def test_before_the_first_look_all_turns_are_alike(rounds):
    milliseconds = {"none": [1.0] * rounds, "ddp": CLEAR[:rounds], "mpi": [1.0] * rounds}
    assert set(turn_seconds(in_turns(milliseconds, config={"rounds": 9})).values()) == {TURN_SECONDS}


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
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_auto_takes_turns_if_there_are_several_arms(arms, asked, mode, device):
    assert choose_interleaving(a_config(arms, interleave=asked, device=device)).mode == mode


def test_cohort_has_every_arm_once():
    run = in_turns({"none": [1.0], "ddp": [2.0]}, config={"rounds": 2})
    planned = next_cohort(run)
    assert sorted(one.arm.label for one in planned) == ["ddp", "none"]
    assert [(one.number, one.round) for one in planned] == [(3, 2), (4, 2)]
    assert next_cohort(msgspec.structs.replace(run, launches=run.launches * 2)) == []


class FailingCohort:
    """A cohort in which the second arm fails on its GPU."""

    side_by_side = True

    def __init__(self, *_given, **_more):
        self.current = None

    def carry_out(self, planned, _turns):
        self.current = planned[1]
        raise LaunchError("mpi: rank 0 on here failed.", found="OutOfMemoryError: CUDA out of memory.")


@pytest.mark.parametrize(
    ("device", "asked", "rounds_done", "goes_on"),
    [
        ("cuda", "auto", 0, True),
        ("cuda", "auto", 1, False),
        ("cuda", "blocks", 0, False),
        ("cpu", "auto", 0, False),
    ],
)
def test_arm_that_fails_beside_others_on_a_gpu_is_tried_alone(
    monkeypatch, tmp_path, device, asked, rounds_done, goes_on
):
    """After the first round it is not: what fitted once fits again."""
    monkeypatch.setattr(rounds, "Cohort", FailingCohort)
    told = []
    observer = SimpleNamespace(not_in_turns=told.append)
    run = in_turns({"ddp": [1.0] * rounds_done, "mpi": [1.0] * rounds_done})
    config = a_config("ddp,mpi", device=device, interleave=asked)
    run = msgspec.structs.replace(run, config=config)
    cluster = SimpleNamespace(job=None, another=lambda: None)
    cohorts = rounds.Cohorts(run, tmp_path, cluster, observer)
    planned = cohorts.next()
    if not goes_on:
        with pytest.raises(LaunchError):
            cohorts.carry_out(planned)
        assert cohorts.failed == planned[1]
        return
    launches = cohorts.carry_out(planned)
    assert type(launches) is rounds.Launches
    assert launches.run.interleaved.mode == "launches"
    assert told == [
        "Beside other arms on a GPU: mpi: rank 0 on here failed. OutOfMemoryError: CUDA out of memory."
    ]
    assert launches.run.interleaved.why == told[0]
