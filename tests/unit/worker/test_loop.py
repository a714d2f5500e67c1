"""The training loop, and the test of a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from backends.base import Replica
from compare.data.models import PIXELS
from compare.worker.loop import evaluate, train
from compare.worker.models import build_model, classify, loss_function


class Spy:
    """A replica that notes what is asked of it."""

    learn = Replica.learn

    def __init__(self, passes_per_step=1):
        self.passes_per_step = passes_per_step
        self.asked = []
        self.losses = []

    def module(self, inputs):
        self.asked.append("forward")
        return torch.zeros(len(inputs), 10)

    def backward(self, loss):
        assert loss.shape == ()
        self.losses.append(loss.item())
        self.asked.append("backward")

    def sync(self):
        self.asked.append("sync")

    def step(self):
        self.asked.append("step")


@pytest.mark.parametrize(("passes", "steps", "left"), [(1, 3, 2), (4, 2, 1)])
def test_train_calls_and_reports_the_four_parts_in_order(passes, steps, left):
    replica, told = Spy(passes_per_step=passes), []
    batches = iter([(torch.zeros(2, PIXELS), torch.tensor([0, 1]))] * (passes * steps + left))
    train(replica, batches, classify, steps, told.append)
    assert replica.asked == [*["forward", "backward"] * passes, "sync", "step"] * steps
    assert told == replica.asked
    assert replica.losses == pytest.approx([np.log(10) / passes] * passes * steps)
    assert len(list(batches)) == left


def a_test_set(count):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, PIXELS, generator=generator), torch.randint(
        0, 10, (count,), generator=generator
    )


@pytest.mark.parametrize(("count", "shards"), [(2_500, 1), (2_500, 2), (2_501, 3), (103, 4), (10, 4), (2, 3)])
def test_evaluate_over_all_shards_sees_every_sample_once(count, shards):
    torch.manual_seed(0)
    model, (images, labels) = nn.Linear(PIXELS, 10), a_test_set(count)
    parts = [evaluate(model, images, labels, (index, shards)) for index in range(shards)]
    logits = model(images)
    sizes = [samples for _, samples, _ in parts]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    assert sum(correct for correct, _, _ in parts) == int((logits.argmax(1) == labels).sum())
    expected = loss_function(logits, labels, reduction="sum").item()
    assert sum(loss for _, _, loss in parts) == pytest.approx(expected, rel=1e-4)


def test_evaluate_calls_on_batch_before_every_batch():
    """The test of a large model takes longer than the stall."""
    calls = []
    model = nn.Linear(PIXELS, 10)
    model.register_forward_hook(lambda *_: calls.append("forward"))
    evaluate(model, *a_test_set(2_500), (0, 1), lambda: calls.append("goes on"))
    assert calls == ["goes on", "forward"] * 3


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_has_no_dropout_and_restores_the_model(training):
    model, test_set = build_model("convnet").train(training), a_test_set(20)
    before = [parameter.clone() for parameter in model.parameters()]
    first = evaluate(model, *test_set, (0, 1))
    assert evaluate(model, *test_set, (0, 1)) == first
    assert model.training is training
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
