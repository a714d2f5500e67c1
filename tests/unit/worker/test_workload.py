"""What is trained: the batches of all ranks are those of one process, the models are what they are called."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from backends.base import BackendError, Replica
from compare.schema.config import OPTIMIZERS
from compare.schema.workload import MODELS, PIXELS
from compare.worker import workload
from compare.worker.batches import Batches, as_tensors, normalise
from compare.worker.loop import evaluate, train
from compare.worker.workload import build_model, loss_function, optimizer_maker
from tests.unit.factories import a_config

untimed = settings(deadline=None, max_examples=30)
CPU = torch.device("cpu")


def a_training_set(count):
    """Samples that can be told apart: the label of each is its index."""
    images = torch.zeros(count, PIXELS)
    images[:, 0] = torch.arange(count)
    return images, torch.arange(count)


def walk(count, shard, batch_size, steps, seed=0, accumulate=1, ranks=None):
    """Return the samples of a shard's first steps, one list for each step or pass.

    ``batch_size`` is that of a rank; there are as many ranks as shards, unless they are given.
    """
    ranks = ranks or shard[1]
    config = a_config(ranks=ranks, batch_size_per_rank=batch_size, seed=seed, accumulate=accumulate)
    batches = Batches(*a_training_set(count), shard, config)
    seen = []
    for inputs, targets in islice(batches, steps):
        assert inputs.shape == (batch_size * ranks // shard[1], PIXELS)
        assert inputs[:, 0].tolist() == targets.tolist()
        seen.append(targets.tolist())
    return seen


# ---- batches ----


@untimed
@given(
    ranks=st.integers(1, 5),
    batch=st.integers(1, 8),
    count=st.integers(50, 120),
    seed=st.integers(0, 2**32 - 1),
)
def test_together_the_shards_are_the_batches_of_one_process(ranks, batch, count, seed):
    steps = 2 * (count // (ranks * batch)) + 1
    one_process = walk(count, (0, 1), ranks * batch, steps, seed)
    shards = [walk(count, (rank, ranks), batch, steps, seed) for rank in range(ranks)]
    assert [list(chain(*parts)) for parts in zip(*shards, strict=True)] == one_process


@untimed
@given(groups=st.integers(1, 3), members=st.integers(1, 3), batch=st.integers(1, 4), passes=st.integers(1, 3))
def test_batches_of_ranks_that_share_a_shard_are_larger(groups, members, batch, passes):
    """A batch is the global batch divided by the shards, not by the ranks."""
    ranks, steps, count = groups * members, 3, 120
    by_rank = walk(count, (0, 1), ranks * batch, steps * passes, accumulate=passes)
    shards = [
        walk(count, (group, groups), batch, steps * passes, accumulate=passes, ranks=ranks)
        for group in range(groups)
    ]
    for step in range(steps):
        passes_of_step = slice(step * passes, (step + 1) * passes)
        parts = [chain(*shard[passes_of_step]) for shard in shards]
        assert list(chain(*parts)) == list(chain(*by_rank[passes_of_step]))


def test_shards_that_do_not_divide_the_batch_are_refused():
    config = a_config(ranks=3, batch_size_per_rank=5)
    with pytest.raises(BackendError, match="2 shards do not divide a global batch of 3 × 5 samples"):
        Batches(*a_training_set(60), (0, 2), config)


@untimed
@given(
    ranks=st.integers(1, 4),
    batch=st.integers(1, 4),
    passes=st.integers(2, 4),
    count=st.integers(64, 120),
)
def test_together_the_passes_of_all_shards_are_the_batches_of_one_process(ranks, batch, passes, count):
    steps = 2 * (count // (ranks * batch * passes)) + 1
    one_process = walk(count, (0, 1), ranks * batch * passes, steps)
    shards = [
        list(chain(*walk(count, (rank, ranks), batch, steps * passes, accumulate=passes)))
        for rank in range(ranks)
    ]
    size = batch * passes
    for step, expected in enumerate(one_process):
        parts = [shard[step * size : (step + 1) * size] for shard in shards]
        assert list(chain(*parts)) == expected


@untimed
@given(ranks=st.integers(1, 5), batch=st.integers(1, 8), count=st.integers(50, 120))
def test_in_an_epoch_no_sample_comes_twice_and_fewer_than_a_batch_are_left_out(ranks, batch, count):
    steps = count // (ranks * batch)
    seen = [
        sample
        for rank in range(ranks)
        for part in walk(count, (rank, ranks), batch, steps)
        for sample in part
    ]
    assert len(seen) == len(set(seen)) == steps * ranks * batch
    assert count - len(seen) < ranks * batch


def test_every_epoch_is_shuffled_anew_and_the_walk_never_ends():
    steps = walk(60, (0, 1), 20, 9)
    epochs = [list(chain(*steps[start : start + 3])) for start in (0, 3, 6)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(60))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != list(range(60))


def test_the_seed_decides_the_order():
    assert walk(60, (0, 2), 10, 6, seed=1) == walk(60, (0, 2), 10, 6, seed=1)
    assert walk(60, (0, 2), 10, 6, seed=1) != walk(60, (0, 2), 10, 6, seed=2)


def test_the_order_does_not_depend_on_what_else_was_drawn():
    """Ranks drop out differently; they must still agree about the batches."""
    first = walk(60, (0, 2), 10, 6)
    torch.manual_seed(12345)
    torch.rand(100)
    assert walk(60, (0, 2), 10, 6) == first


def test_an_epochs_order_is_not_that_of_the_next_seeds_epoch():
    assert walk(60, (0, 1), 60, 2, seed=0)[1] != walk(60, (0, 1), 60, 1, seed=1)[0]


def test_inputs_cost_no_allocation():
    config = a_config(ranks=1, batch_size_per_rank=10)
    batches = islice(Batches(*a_training_set(60), (0, 1), config), 20)
    assert len({inputs.data_ptr() for inputs, _ in batches}) == 1


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_every_seed_that_a_config_takes_can_be_used(seed):
    # In a long run the seed of an epoch grows beyond that of the run.
    config = a_config(ranks=1, batch_size_per_rank=30, seed=seed)
    batches = Batches(*a_training_set(60), (0, 1), config)
    assert len(batches._shard_of(10**6)) == 2


# ---- images ----


def test_images_are_normalised_as_in_every_tutorial():
    images = np.array([[[0] * 28] * 28, [[255] * 28] * 28], dtype=np.uint8)
    pixels, labels = as_tensors(images, np.array([3, 7], dtype=np.uint8), CPU)
    inputs = normalise(pixels)
    assert inputs.shape == (2, 784)
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert inputs[0].unique().item() == pytest.approx(-0.1307 / 0.3081)
    assert inputs[1].unique().item() == pytest.approx((1 - 0.1307) / 0.3081, abs=1e-6)
    assert labels.tolist() == [3, 7]
    assert (images[1] == 255).all(), "the raw images are left alone"


def test_every_value_of_a_pixel_is_normalised_as_by_dividing_subtracting_and_dividing():
    pixels = torch.arange(256, dtype=torch.uint8)
    tutorial = pixels.double().div(255).sub(0.1307).div(0.3081)
    assert normalise(pixels).double() == pytest.approx(tutorial, abs=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_pixel_is_normalised_to_the_same_bits_wherever_it_stands(threads):
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


def test_batches_of_pixels_are_normalised_and_the_pixels_stay_bytes():
    pixels = torch.arange(60, dtype=torch.uint8)[:, None].expand(60, PIXELS).contiguous()
    labels = torch.arange(60)
    config = a_config(ranks=1, batch_size_per_rank=20)
    for inputs, targets in islice(Batches(pixels, labels, (0, 1), config), 6):
        assert torch.equal(inputs, normalise(pixels[targets]))
    assert torch.equal(pixels[:, 0], torch.arange(60, dtype=torch.uint8))


@pytest.mark.parametrize("batch_size", [1, 50, 64, 256])  # 510, 10, 7 and 1 of them are fetched at once
def test_batches_of_pixels_come_in_the_order_of_any_others(batch_size):
    images, labels = a_training_set(1030)
    pixels = torch.zeros(1030, PIXELS, dtype=torch.uint8)
    pixels[:, 0], pixels[:, 1] = labels % 256, labels // 256
    config = a_config(batch_size_per_rank=batch_size)
    two_epochs = 2 * (1030 // (2 * batch_size))
    theirs = islice(Batches(images, labels, (1, 2), config), two_epochs)
    for (inputs, targets), (_, same) in zip(Batches(pixels, labels, (1, 2), config), theirs, strict=False):
        assert torch.equal(targets, same)
        assert torch.equal(inputs, normalise(pixels[targets]))


# ---- models ----


@pytest.mark.parametrize("name", [*MODELS, "mlp:784-10", "mlp:784-5-7-10"])
def test_every_model_maps_pixels_to_logits(name):
    model = build_model(name)
    loss = loss_function(model(torch.randn(3, PIXELS)), torch.tensor([0, 1, 2]))
    loss.backward()
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in model.parameters())


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
def test_every_model_has_as_many_parameters_as_it_should(name, parameters, tensors):
    model = build_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len(list(model.parameters())) == tensors


@pytest.mark.parametrize(("name", "megabytes"), [("mlp", 0.814), ("convnet", 4.80), ("wide", 80.15)])
def test_the_gradients_weigh_what_the_help_says(name, megabytes):
    size_bytes = sum(p.numel() * p.element_size() for p in build_model(name).parameters())
    assert size_bytes / 1e6 == pytest.approx(megabytes, rel=1e-3)


def test_a_name_is_short_for_its_widths():
    torch.manual_seed(7)
    named = build_model("mlp")
    torch.manual_seed(7)
    written = build_model("mlp:784-256-10")
    assert str(named) == str(written)
    assert all(map(torch.equal, named.parameters(), written.parameters()))


def test_the_convnet_drops_only_where_it_should():
    pixels = torch.randn(4, PIXELS)
    dropping, exact = build_model("convnet"), build_model("convnet", dropout=False)
    assert not torch.equal(dropping(pixels), dropping(pixels))
    assert torch.equal(exact(pixels), exact(pixels))
    dropping.eval()
    assert torch.equal(dropping(pixels), dropping(pixels))


def test_an_unknown_model_is_an_error():
    with pytest.raises(ValueError, match="resnet"):
        build_model("resnet")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_is_the_one_that_was_named_with_its_rate(name):
    model = nn.Linear(2, 1)
    optimizer = optimizer_maker(a_config(optimizer=name, learning_rate=0.125))(model.parameters())
    assert type(optimizer).__name__.lower() == name
    assert [group["lr"] for group in optimizer.param_groups] == [0.125]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_the_optimizer_steps_as_the_one_of_torch_does_to_the_bit(kind):
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
def test_a_step_is_no_event_of_a_profiler_and_refuses_hooks_that_it_would_not_call(before):
    model = nn.Linear(2, 1)
    if before:  # which makes torch wrap the step of its class
        torch.optim.SGD(model.parameters(), lr=0.5)
        workload._without_hooks.cache_clear()
    optimizer = optimizer_maker(a_config(optimizer="sgd"))(model.parameters())
    model(torch.ones(2)).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    names = {event.name for event in profile.events()}
    assert "aten::add_" in names
    assert not [name for name in names if "Optimizer" in name]
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        with pytest.raises(BackendError, match=r"without hooks.* call it in the replica's step\(\)"):
            register(print)


# ---- training and testing ----


class Spy:
    """A replica that notes what is asked of it."""

    learn = Replica.learn

    def __init__(self, passes_per_step=1):
        self.passes_per_step = passes_per_step
        self.asked = []
        self.losses = []

    def forward(self, inputs):
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


def test_the_loop_asks_for_four_things_in_turn_and_takes_no_batch_too_many():
    replica = Spy()
    batches = iter([(torch.zeros(2, PIXELS), torch.tensor([0, 1]))] * 5)
    train(replica, batches, 3)
    assert replica.asked == ["forward", "backward", "sync", "step"] * 3
    assert len(list(batches)) == 2


def test_a_step_of_several_passes_is_averaged_once_and_its_losses_are_the_mean_of_its_samples():
    replica = Spy(passes_per_step=4)
    batches = iter([(torch.zeros(2, PIXELS), torch.tensor([0, 1]))] * 9)
    train(replica, batches, 2)
    assert replica.asked == [*["forward", "backward"] * 4, "sync", "step"] * 2
    assert replica.losses == pytest.approx([np.log(10) / 4] * 8)
    assert len(list(batches)) == 1


def a_test_set(count):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, PIXELS, generator=generator), torch.randint(
        0, 10, (count,), generator=generator
    )


@pytest.mark.parametrize(("count", "shards"), [(2_500, 1), (2_500, 2), (2_501, 3), (10, 4), (2, 3)])
def test_over_all_shards_every_test_sample_is_seen_once(count, shards):
    torch.manual_seed(0)
    model, (images, labels) = nn.Linear(PIXELS, 10), a_test_set(count)
    parts = [evaluate(model, images, labels, (index, shards)) for index in range(shards)]
    logits = model(images)
    assert sum(samples for _, samples, _ in parts) == count
    assert sum(correct for correct, _, _ in parts) == int((logits.argmax(1) == labels).sum())
    expected = loss_function(logits, labels, reduction="sum").item()
    assert sum(loss for _, _, loss in parts) == pytest.approx(expected, rel=1e-4)


def test_shards_of_the_test_set_differ_by_one_sample_at_most():
    sizes = [evaluate(nn.Linear(PIXELS, 10), *a_test_set(103), (index, 4))[1] for index in range(4)]
    assert max(sizes) - min(sizes) <= 1


def test_a_test_says_before_every_batch_that_it_goes_on():
    """A large model is tested for longer than a rank may be silent."""
    said = []
    model = nn.Linear(PIXELS, 10)
    model.register_forward_hook(lambda *_: said.append("forward"))
    evaluate(model, *a_test_set(2_500), (0, 1), lambda: said.append("goes on"))
    assert said == ["goes on", "forward"] * 3


def test_what_is_always_right_is_always_right():
    images, labels = torch.zeros(50, 10), torch.arange(50) % 10
    images[torch.arange(50), labels] = 1.0
    correct, samples, loss = evaluate(nn.Identity(), images, labels, (0, 1))
    assert (correct, samples) == (50, 50)
    assert loss == pytest.approx(50 * (np.log(np.e + 9) - 1), rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_testing_drops_nothing_and_leaves_the_model_as_it_was(training):
    model, test_set = build_model("convnet").train(training), a_test_set(20)
    before = [parameter.clone() for parameter in model.parameters()]
    first = evaluate(model, *test_set, (0, 1))
    assert evaluate(model, *test_set, (0, 1)) == first
    assert model.training is training
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
