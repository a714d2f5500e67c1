"""The order of launches: every arm once a round, shuffled, the same for the same seed, and then an end."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.experiment import next_launch, order_of, total_launches
from tests.unit.factories import a_config

ARMS = ["none", "ddp", "manual", "manual:mode=overlap", "horovod", "mpi"]

CONFIGS = st.builds(
    lambda arms, rounds, seed: a_config(",".join(arms), rounds=rounds, seed=seed),
    st.lists(st.sampled_from(ARMS), min_size=1, unique=True),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
)


def all_launches(config):
    planned = []
    while following := next_launch(config, len(planned)):
        planned.append(following)
        assert len(planned) < 1000
    return planned


@settings(deadline=None)
@given(CONFIGS)
def test_every_round_launches_every_arm_once(config):
    planned = all_launches(config)
    assert len(planned) == total_launches(config) == config.rounds * len(config.arms)
    assert Counter((p.round, p.arm.label) for p in planned) == {
        (round_, arm.label): 1 for round_ in range(1, config.rounds + 1) for arm in config.arms
    }
    assert [p.round for p in planned] == sorted(p.round for p in planned)


@settings(deadline=None)
@given(CONFIGS)
def test_launches_are_numbered_from_one(config):
    assert [p.number for p in all_launches(config)] == list(range(1, total_launches(config) + 1))


@settings(deadline=None)
@given(CONFIGS)
def test_the_same_config_gives_the_same_order_even_after_a_journey_as_json(config):
    again = msgspec.json.decode(msgspec.json.encode(config), type=type(config))
    assert all_launches(again) == all_launches(config)


@settings(deadline=None)
@given(CONFIGS)
def test_a_round_is_launched_in_its_order(config):
    planned = all_launches(config)
    for round_ in range(1, config.rounds + 1):
        assert tuple(p.arm for p in planned if p.round == round_) == order_of(config, round_)


@settings(deadline=None)
@given(CONFIGS, st.integers(0, 100))
def test_after_the_last_launch_there_is_none(config, beyond):
    assert next_launch(config, total_launches(config) + beyond) is None


def test_rounds_are_shuffled_apart():
    config = a_config("none,ddp,manual,mpi", rounds=20)
    orders = {tuple(arm.label for arm in order_of(config, round_)) for round_ in range(1, 21)}
    assert len(orders) > 5


def test_every_arm_comes_first_now_and_then():
    config = a_config("none,ddp,manual,mpi", rounds=100)
    first = Counter(order_of(config, round_)[0].label for round_ in range(1, 101))
    assert min(first[arm.label] for arm in config.arms) > 10


def test_seeds_shuffle_differently():
    orders = {
        tuple(arm.label for arm in order_of(a_config("none,ddp,manual,mpi", seed=seed), 1))
        for seed in range(20)
    }
    assert len(orders) > 5


def test_the_order_of_a_seed_never_changes():
    # Written down: a run from last year, repeated with its seed, launches in the same order.
    config = a_config("none,ddp,manual,mpi", seed=0)
    assert [[arm.label for arm in order_of(config, round_)] for round_ in (1, 2, 3)] == [
        ["none", "ddp", "manual", "mpi"],
        ["ddp", "none", "mpi", "manual"],
        ["mpi", "manual", "none", "ddp"],
    ]
