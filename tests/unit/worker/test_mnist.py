"""The built-in models: their batches, optimizers, training loop and test."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from backends.base import BackendError, Replica
from compare.data.models import PIXELS
from compare.worker import mnist
from compare.worker.loop import train
from compare.worker.mnist import (
    MnistTask,
    PixelBatches,
    as_tensors,
    build_model,
    classify,
    loss_function,
    normalise,
    optimizer_maker,
)
from tests.unit.factories import a_config

CPU = torch.device("cpu")


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
        with pytest.raises(BackendError, match=r"call no hooks.* Call it in step\(\) of the arm's Replica"):
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


# ---- batches and images ----


def a_training_set(count):
    """Samples with their index as the label."""
    images = torch.zeros(count, PIXELS)
    images[:, 0] = torch.arange(count)
    return images, torch.arange(count)


def walk(count, shard, batch_size, steps, seed=0, accumulate=1, ranks=None):
    """Return a shard's first samples, a list for each step or pass.

    ``batch_size`` is that of a rank; there are as many ranks as shards, unless they are given.
    """
    ranks = ranks or shard[1]
    config = a_config(ranks=ranks, batch_size_per_rank=batch_size, seed=seed, accumulate=accumulate)
    batches = PixelBatches(*a_training_set(count), shard, config)
    seen = []
    for inputs, targets in islice(batches, steps):
        assert inputs.shape == (batch_size * ranks // shard[1], PIXELS)
        assert inputs[:, 0].tolist() == targets.tolist()
        seen.append(targets.tolist())
    return seen


@settings(deadline=None, max_examples=30)
@given(
    shards=st.integers(1, 5),
    members=st.integers(1, 3),
    batch=st.integers(1, 6),
    passes=st.integers(1, 3),
    count=st.integers(270, 320),
    seed=st.integers(0, 2**32 - 1),
)
def test_batches_of_all_shards_are_those_of_one_process(shards, members, batch, passes, count, seed):
    """The global batch is divided by the shards, not by the ranks: some members share a shard."""
    ranks = shards * members
    global_batch = ranks * batch * passes
    steps = 2 * (count // global_batch) + 1
    one_process = walk(count, (0, 1), global_batch, steps, seed)
    parts = [
        list(chain(*walk(count, (shard, shards), batch, steps * passes, seed, passes, ranks)))
        for shard in range(shards)
    ]
    size = global_batch // shards
    for step, expected in enumerate(one_process):
        assert [sample for part in parts for sample in part[step * size : (step + 1) * size]] == expected


def test_batches_are_endless_and_every_epoch_has_another_order():
    steps = walk(60, (0, 1), 20, 9)
    epochs = [list(chain(*steps[start : start + 3])) for start in (0, 3, 6)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(60))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != list(range(60))


def test_batches_order_depends_on_the_seed_alone():
    """Ranks drop out differently; they must still agree about the batches."""
    first = walk(60, (0, 2), 10, 6, seed=1)
    torch.manual_seed(12345)
    torch.rand(100)
    assert walk(60, (0, 2), 10, 6, seed=1) == first
    assert walk(60, (0, 2), 10, 6, seed=2) != first
    assert walk(60, (0, 1), 60, 2, seed=0)[1] != walk(60, (0, 1), 60, 1, seed=1)[0], "not as the next epoch"


def test_as_tensors_flattens_the_images_and_leaves_the_raw_ones_alone():
    images = np.array([[[0] * 28] * 28, [[255] * 28] * 28], dtype=np.uint8)
    pixels, labels = as_tensors(images, np.array([3, 7], dtype=np.uint8), CPU)
    inputs = normalise(pixels)
    assert inputs.shape == (2, 784)
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert labels.tolist() == [3, 7]
    assert [len(image.unique()) for image in inputs] == [1, 1], "no pixel has moved to another image"
    assert (images[1] == 255).all()


def test_normalise_every_pixel_value_as_the_tutorial_formula():
    pixels = torch.arange(256, dtype=torch.uint8)
    tutorial = pixels.double().div(255).sub(0.1307).div(0.3081)
    assert normalise(pixels).double() == pytest.approx(tutorial, abs=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_normalise_gives_the_same_bits_at_every_place(threads):
    """Else the ranks' batches would not be those of a single process."""
    pixels = torch.arange(256, dtype=torch.uint8).repeat(700)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = normalise(pixels)
    finally:
        torch.set_num_threads(before)
    pieces = [normalise(piece) for piece in pixels.split([1, 7, 33, 1_000, len(pixels) - 1_041])]
    assert torch.equal(whole, torch.cat(pieces))


@pytest.mark.parametrize("batch_size", [1, 50, 64, 256])  # 510, 10, 7 and 1 of them are fetched at once
def test_batches_of_pixels_are_normalised_in_the_order_of_other_images(batch_size):
    images, labels = a_training_set(1030)
    pixels = torch.zeros(1030, PIXELS, dtype=torch.uint8)
    pixels[:, 0], pixels[:, 1] = labels % 256, labels // 256
    config, before = a_config(batch_size_per_rank=batch_size), pixels.clone()
    two_epochs = 2 * (1030 // (2 * batch_size))
    theirs = islice(PixelBatches(images, labels, (1, 2), config), two_epochs)
    for (inputs, targets), (_, same) in zip(
        PixelBatches(pixels, labels, (1, 2), config), theirs, strict=False
    ):
        assert torch.equal(targets, same)
        assert torch.equal(inputs, normalise(pixels[targets]))
    assert torch.equal(pixels, before)
