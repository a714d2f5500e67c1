"""Test what would let a budget hold the rounds of a verdict: each remedy must fit by the same arithmetic."""

import msgspec
import pytest

from compare.analysis.budget import LEAD_SECONDS
from compare.analysis.fitting import shortfall
from compare.schema.results import Interleaved
from tests.unit.factories import a_block, a_launch, a_rank, a_run

SETTINGS = {"rounds": 1000, "steps": 1000, "warmup_steps": 10}


def after_a_round(budget, *, arms=("none", "ddp", "mpi"), seconds=10.0, blocks=None, **config):
    """Return a run after its first round, in which each arm took ``seconds`` and its steps 5 ms."""
    launches = [
        a_launch(arm, 1, ranks=[a_rank(0, **({"blocks": blocks} if blocks else {"milliseconds": 5.0}))])
        for arm in arms
    ]
    launches = [
        msgspec.structs.replace(launch, started_at=number * seconds, seconds=seconds)
        for number, launch in enumerate(launches)
    ]
    settings = SETTINGS | {"budget_seconds": budget} | config
    return a_run({arm: [] for arm in arms}, config=settings, launches=launches, complete=False)


def test_budget_that_holds_five_rounds_lacks_nothing():
    assert shortfall(after_a_round(150.0)) is None
    assert shortfall(after_a_round(10.0, rounds=4)) is None, "--repeats wants no verdict"
    assert shortfall(after_a_round(10.0, arms=("none", "ddp"))) is None, "nothing is compared"


def test_needed_budget_is_the_pace_of_the_first_round():
    found = shortfall(after_a_round(100.0, seconds=10.1))
    assert found.needed_seconds == pytest.approx(5 * 3 * 10.1)
    assert found.budget_seconds == 160


def test_fewer_steps_spare_the_missing_seconds_in_every_round():
    found = shortfall(after_a_round(120.0))
    spared = 5 * 3 * (1000 - found.steps) * 0.005
    assert found.steps == 600
    assert spared >= 150.0 - 120.0
    assert 5 * 3 * (1000 - 610) * 0.005 < 30.0


def test_fewer_steps_are_no_remedy_if_starts_take_the_time():
    assert shortfall(after_a_round(60.0)).steps is None


def test_steps_of_turns_are_not_spared():
    turns = [a_block(5.0 * 119 / 30, steps=119, turn=turn) for turn in range(1, 5)]
    lead = round(LEAD_SECONDS / 0.005)
    in_turns = 10 + 4 * (120 + lead)
    run = after_a_round(120.0, blocks=turns, steps=in_turns)
    run = msgspec.structs.replace(run, interleaved=Interleaved(mode="blocks"))
    assert shortfall(run).steps is None
    longer = msgspec.structs.replace(run, config=msgspec.structs.replace(run.config, steps=2000))
    assert 5 * 3 * (2000 - shortfall(longer).steps) * 0.005 >= 30.0


def test_fewer_arms_keep_two_to_compare_and_the_control():
    assert shortfall(after_a_round(100.0)).arms is None
    assert shortfall(after_a_round(100.0, arms=("ddp", "mpi", "manual"))).arms == 2
    five = ("none", "ddp", "mpi", "manual", "horovod")
    assert shortfall(after_a_round(160.0, arms=five)).arms == 3


def test_before_the_first_round_only_arms_can_be_named():
    run = msgspec.structs.replace(after_a_round(40.0), launches=[], cores_by_host=[2])
    found = shortfall(run)
    assert (found.budget_seconds, found.steps, found.arms) == (None, None, None)
    assert found.needed_seconds == 5 * 3 * 3.0
