"""Which all-reduces of a script average its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from compare.meter.by_hand import ByHand, Call, gradient_calls


def call(elements, *, floating=True, of_gradient=False, alone=False):
    return Call(elements, torch.float32 if floating else torch.int32, of_gradient, alone)


@pytest.mark.parametrize(
    ("calls", "places"),
    [
        ([call(60, of_gradient=True), call(40, of_gradient=True), call(1)], {0, 1}),
        ([call(1), call(100)], {1}),
        ([call(30), call(1), call(70)], {0, 2}),
        ([call(1)], set()),
        ([call(100, floating=False)], set()),
        ([call(10), call(100)], {1}),
        ([call(10)], set()),
        ([], set()),
        ([call(100), call(60, of_gradient=True, alone=True), call(40, of_gradient=True, alone=True)], {0}),
        ([call(100), call(60, of_gradient=True)], {0, 1}),
    ],
    ids=[
        *("gradients", "flat", "buckets", "metric", "counts", "flat and metric", "metrics", "none"),
        *("a group of one rank", "flat and gradients"),
    ],
)
def test_gradient_calls_are_those_that_carry_all_gradients(calls, places):
    assert gradient_calls(calls, 100) == places


class Work:
    def wait(self):
        return True


@pytest.fixture
def by_hand(monkeypatch):
    """Return the way of a script that averages one gradient by hand, without any ranks."""
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    monkeypatch.setattr(dist, "get_world_size", lambda _=None: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, async_op=False: Work() if async_op else None)
    way = ByHand([torch.optim.SGD([parameter])], [])
    with way.measuring():
        way.begin_learning()
        dist.all_reduce(parameter.grad)
        way.end_learning()
        way.step_ended()
        yield way, parameter.grad


@pytest.mark.parametrize(("asynchronous", "pairs_of_marks"), [(False, 1), (True, 2)])
def test_the_time_of_an_all_reduce_by_hand_is_that_of_waiting(by_hand, asynchronous, pairs_of_marks):
    way, gradient = by_hand
    marks = []
    with way.marking_waits(marks.append):
        work = dist.all_reduce(gradient, async_op=asynchronous)
        if asynchronous:
            assert work.wait()
    assert marks == ["clipping", "waiting"] * pairs_of_marks
    way.step_ended()
    dist.all_reduce(gradient)
    assert len(marks) == 2 * pairs_of_marks


@pytest.fixture
def averaging(monkeypatch):
    """Return a function that averages tensors of some sizes in a step, after one with gradients of 4 and 2.

    It returns the sizes that were sent, and whether the step came out even.
    """
    sent = []
    monkeypatch.setattr(dist, "get_world_size", lambda _=None: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: sent.append(tensor))
    parameters = [torch.nn.Parameter(torch.ones(size, dtype=torch.bfloat16)) for size in (4, 2)]
    way = ByHand([torch.optim.SGD(parameters)], [])
    with way.measuring():
        way.begin_learning()
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
            dist.all_reduce(parameter.grad, group="the script's")
        way.end_learning()

        def step(*sizes, dtype=torch.bfloat16, on=False):
            sent.clear()
            way.switch(on=on)
            for size in sizes:
                dist.all_reduce(torch.ones(size, dtype=dtype))
            return [tensor.numel() for tensor in sent], way.step_ended()

        step.way, step.sent = way, sent
        yield step


def test_gradients_are_left_out_wherever_a_metric_is_averaged_in_a_step(averaging):
    assert averaging(4, 2) == ([], True)
    assert averaging(1, 4, 2) == ([1], True)
    assert averaging(4, 1, 2, 1) == ([1, 1], True)
    assert averaging(4, 2, on=True) == ([4, 2], True)


def test_a_step_without_the_calls_of_others_does_not_come_out_even(averaging):
    assert averaging(2) == ([2], False)
    assert averaging(4, 2, dtype=torch.float32) == ([4, 2], False)
    assert averaging(4, 2) == ([], True)


def test_messages_alone_are_as_the_scripts_own(averaging, monkeypatch):
    groups = []
    monkeypatch.setattr(
        averaging.way, "_original", lambda zeros, group, **_: groups.append((zeros.dtype, group)) or Work()
    )
    averaging.way.start_messages()()
    assert groups == [(torch.bfloat16, "the script's")] * 2
    assert averaging.way.describe().messages == [8, 4]
