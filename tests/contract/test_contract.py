"""Test every backend and mode on 1 to 4 ranks."""

from __future__ import annotations

import msgspec
import pytest

from backends import BACKENDS
from compare.schema.arms import parse_arm
from tests.contract import promises
from tests.contract.plan import ARMS, GROUPS, LAUNCH_OF, LAUNCHES, WORLDS, divides

LOCAL = [label for label in ARMS if BACKENDS[parse_arm(label).backend].training != "same"]
EXACT = {label: parse_arm(label) for label in ARMS if parse_arm(label).exact and label not in LOCAL}
LOSSY = [label for label in ARMS if label not in EXACT and label not in LOCAL]


def marks_of(world):
    """Leave all but two ranks to `make test-faults`, and out of `.ci/run`."""
    return [] if world == 2 else [pytest.mark.faults, pytest.mark.rest]


def cases(names, synchronises, promised, exempt):
    """List names, world sizes and promises, those of one launch together."""
    return [
        pytest.param(promise, name, world, id=f"{promise.__name__}-{name}-{world}", marks=marks_of(world))
        for world in WORLDS
        for name in names
        if name in GROUPS or divides(name, world)
        for promise in (promised if synchronises(name) else exempt)
    ]


@pytest.mark.parametrize(
    ("promise", "group", "world"),
    cases(
        GROUPS,
        lambda name: parse_arm(GROUPS[name].arm).traits.communicates,
        promises.OF_A_GROUP,
        promises.OF_NO_GROUP,
    ),
)
def test_group_keeps_the_promise(launched, promise, group, world):
    promise(launched(LAUNCH_OF[group], world).groups(group))


@pytest.mark.parametrize(
    ("promise", "arm", "world"),
    [
        *cases(
            EXACT, lambda arm: EXACT[arm].traits.synchronises, promises.OF_A_REPLICA, promises.OF_THE_CONTROL
        ),
        *cases(LOSSY, bool, promises.OF_A_LOSSY_REPLICA, ()),
        *cases(LOCAL, bool, promises.OF_LOCAL_TRAINING, ()),
    ],
)
def test_replica_keeps_the_promise(launched, promise, arm, world):
    promise(launched(LAUNCH_OF[arm], world).replicas(arm))


@pytest.mark.parametrize("world", [pytest.param(world, marks=marks_of(world)) for world in WORLDS])
@pytest.mark.parametrize("launch", LAUNCHES)
def test_launch_exits_with_0_after_every_rank_left(launched, launch, world):
    outcome = launched(launch, world)
    assert outcome.status == 0, outcome.logs()
    assert all(rank.left for rank in outcome.ranks)
    assert len(outcome.ranks) == msgspec.structs.replace(LAUNCHES[launch], world=world).processes
