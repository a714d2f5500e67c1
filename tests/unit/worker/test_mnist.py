"""The built-in models, their optimizers, their training loop and their test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from backends.base import BackendError, Replica
from compare.data.models import PIXELS
from compare.worker import mnist
from compare.worker.loop import train
from compare.worker.mnist import (
    MnistTask,
    build_model,
    classify,
    loss_function,
    normalise,
    optimizer_maker,
)
from tests.unit.factories import a_config


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("mlp", 784 * 256 + 256 + 256 * 10 + 10, 4),
        # The network of pytorch/examples' mnist/main.py.
        ("convnet", 1_199_882, 8),
        ("wide", 784 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 10 + 10, 6),
        ("mlp:784-10", 784 * 10 + 10, 2),
        ("mlp:784-20-30-10", 784 * 20 + 20 + 20 * 30 + 30 + 30 * 10 + 10, 6),
    ],
)
def test_build_model_has_the_documented_parameters_and_maps_to_logits(name, parameters, tensors):
    model = build_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len(list(model.parameters())) == tensors
    loss_function(model(torch.randn(3, PIXELS)), torch.tensor([0, 1, 2])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_build_model_name_equals_its_widths():
    torch.manual_seed(7)
    named = build_model("mlp")
    torch.manual_seed(7)
    written = build_model("mlp:784-256-10")
    assert str(named) == str(written)
    assert all(map(torch.equal, named.parameters(), written.parameters()))


def test_build_model_convnet_drops_out_only_in_training():
    pixels = torch.randn(4, PIXELS)
    model = build_model("convnet")
    assert not torch.equal(model(pixels), model(pixels))
    model.eval()
    assert torch.equal(model(pixels), model(pixels))


def test_build_model_refuses_an_unknown_name():
    with pytest.raises(ValueError, match="resnet"):
        build_model("resnet")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimizer_maker_steps_as_torch_bit_for_bit(kind):
    config = a_config(optimizer=kind.__name__.lower(), learning_rate=0.125)
    ours, theirs = nn.Linear(7, 3), nn.Linear(7, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizers = [optimizer_maker(config)(ours.parameters()), kind(theirs.parameters(), lr=0.125)]
    for _ in range(3):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.arange(7.0)).square().sum().backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("before", [True, False])
def test_optimizer_maker_has_no_wrapper_and_refuses_hooks(before):
    model = nn.Linear(2, 1)
    if before:  # which makes torch wrap the step of its class
        torch.optim.SGD(model.parameters(), lr=0.5)
        mnist.without_hooks.cache_clear()
    optimizer = optimizer_maker(a_config(optimizer="sgd"))(model.parameters())
    model(torch.ones(2)).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    names = {event.name for event in profile.events()}
    assert "aten::add_" in names
    assert not [name for name in names if "Optimizer" in name]
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        with pytest.raises(BackendError, match=r"call no hooks.* Call it in the replica's step\(\)"):
            register(print)


# ---- the loop and the test ----


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
    generator = np.random.default_rng(7)
    return generator.integers(0, 256, (count, PIXELS), np.uint8), generator.integers(0, 10, count)


@pytest.fixture
def take_test(monkeypatch):
    """Test a model on samples."""

    def take(model, test_set, shard=(0, 1), on_batch=lambda: None):
        monkeypatch.setattr(mnist.data, "load_split", lambda *_: test_set)
        task = MnistTask(a_config(), None, torch.zeros(1, PIXELS), torch.zeros(1))
        return task.test(model, shard, on_batch)

    return take


@pytest.mark.parametrize(("count", "shards"), [(2_500, 1), (2_500, 2), (2_501, 3), (103, 4), (10, 4), (2, 3)])
def test_test_over_all_shards_sees_every_sample_once(take_test, count, shards):
    torch.manual_seed(0)
    model, (images, labels) = nn.Linear(PIXELS, 10), a_test_set(count)
    parts = [take_test(model, (images, labels), (index, shards)) for index in range(shards)]
    logits, targets = model(normalise(torch.from_numpy(images))), torch.from_numpy(labels)
    sizes = [part.samples for part in parts]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    assert sum(part.correct for part in parts) == int((logits.argmax(1) == targets).sum())
    expected = loss_function(logits, targets, reduction="sum").item()
    assert sum(part.loss_sum for part in parts) == pytest.approx(expected, rel=1e-4)


def test_test_calls_on_batch_before_every_batch(take_test):
    """The test of a large model takes longer than the stall."""
    calls = []
    model = nn.Linear(PIXELS, 10)
    model.register_forward_hook(lambda *_: calls.append("forward"))
    take_test(model, a_test_set(2_500), on_batch=lambda: calls.append("goes on"))
    assert calls == ["goes on", "forward"] * 3


@pytest.mark.parametrize("training", [True, False])
def test_test_has_no_dropout_and_restores_the_model(take_test, training):
    model, test_set = build_model("convnet").train(training), a_test_set(20)
    before = [parameter.clone() for parameter in model.parameters()]
    assert take_test(model, test_set) == take_test(model, test_set)
    assert model.training is training
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
