"""Which optimizer's steps are those of a script."""

from __future__ import annotations

import pytest
import torch

from compare.meter.steps import Steps


def an_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def step(steps, optimizer, count=1):
    for _ in range(count):
        steps.begin(optimizer)
        steps.end(optimizer)
        steps.counts(optimizer)


def test_of_several_optimizers_the_one_that_steps_least_often_counts():
    steps, every, second, rare = Steps(), an_optimizer(), an_optimizer(), an_optimizer()
    step(steps, rare)
    for _ in range(10):
        step(steps, every, 2)
        step(steps, second)
    steps.settle()
    before = steps.count
    step(steps, every, 2)
    assert steps.count == before
    step(steps, second)
    assert steps.count == before + 1


def test_an_optimizer_that_is_used_no_more_does_not_count():
    """Horovod takes a step with the plain optimizer, to broadcast its state, and then wraps it."""
    steps, plain, wrapped = Steps(), an_optimizer(), an_optimizer()
    step(steps, plain)
    step(steps, wrapped, 8)
    steps.settle()
    before = steps.count
    step(steps, wrapped, 3)
    assert steps.count == before + 3


def test_an_optimizer_at_the_place_of_an_old_one_begins_at_zero():
    steps, old = Steps(), an_optimizer()
    step(steps, old, 5)
    place = id(old)
    del old
    news = [an_optimizer() for _ in range(50)]
    again = next((one for one in news if id(one) == place), news[0])
    assert not steps.knows(again)
    assert steps.taken(again) == 0
    step(steps, again)
    assert steps.taken(again) == 1


@pytest.mark.parametrize("lives", [True, False], ids=["kept", "let go"])
def test_another_optimizer_counts_once_the_first_is_used_no_more(lives):
    steps, old = Steps(), [an_optimizer()]
    step(steps, old[0], 5)
    steps.settle()
    if not lives:
        old.clear()
    new = an_optimizer()
    step(steps, new, 100)
    assert (steps.count, steps.lost_pace) == (5, False)
    step(steps, new, 10)
    assert (steps.count, steps.lost_pace) == (15, True)


def test_a_step_of_many_optimizers_each_keeps_its_pace():
    steps, many = Steps(), [an_optimizer() for _ in range(200)]
    for number in range(4):
        for one in many:
            step(steps, one)
        if number == 1:
            steps.settle()
    assert (steps.count, steps.lost_pace) == (4, False)
