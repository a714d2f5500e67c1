"""The order and the length of blocks."""

from __future__ import annotations

from itertools import islice

import pytest

from compare.meter.plan import block_steps, orders, steps_to_wait
from compare.schema.metered import MeterSettings


def test_orders_have_both_kinds_in_each_pair_and_are_balanced():
    pairs = list(islice(orders(MeterSettings()), 20))
    assert all(set(pair) == {"synchronised", "local"} for pair in pairs)
    assert sum(pair[0] == "local" for pair in pairs) == 10
    assert pairs != [pairs[0], pairs[1]] * 10


def test_orders_follow_the_seed():
    first, again, other = (list(islice(orders(MeterSettings(seed=seed)), 40)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_orders_of_an_aa_test_never_stop_synchronising():
    kinds = {kind for pair in islice(orders(MeterSettings(aa=True)), 20) for kind in pair}
    assert kinds == {"synchronised", "aa"}


@pytest.mark.parametrize(("epoch", "steps"), [(None, 25), (1000, 25), (40, 17), (14, 5), (3, 5)])
def test_block_steps_let_a_pair_fit_into_an_epoch(epoch, steps):
    assert block_steps(25, epoch) == steps


@pytest.mark.parametrize(
    ("left", "epoch", "wait"), [(None, None, 0), (53, 100, 0), (52, 100, 54), (0, 100, 2), (4, 20, 0)]
)
def test_a_pair_waits_for_an_epoch_with_room_for_it(left, epoch, wait):
    assert steps_to_wait(left, 25, epoch) == wait
