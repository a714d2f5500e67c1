"""PixelBatches of all shards, and the pixels in them."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import BackendError
from compare.data.models import PIXELS
from compare.worker.mnist import PixelBatches, as_tensors, normalise
from tests.unit.factories import a_config

untimed = settings(deadline=None, max_examples=30)


CPU = torch.device("cpu")


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


# ---- batches ----


@untimed
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


def test_batches_refuse_shards_that_do_not_divide_the_batch():
    config = a_config(ranks=3, batch_size_per_rank=5)
    with pytest.raises(BackendError, match="2 shards do not divide a global batch of 3 × 5 samples"):
        PixelBatches(*a_training_set(60), (0, 2), config)


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


def test_batches_reuse_one_buffer():
    config = a_config(ranks=1, batch_size_per_rank=10)
    batches = islice(PixelBatches(*a_training_set(60), (0, 1), config), 20)
    assert len({inputs.data_ptr() for inputs, _ in batches}) == 1


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_batches_accept_every_seed_of_a_config(seed):
    # In a long run the seed of an epoch grows beyond that of the run.
    config = a_config(ranks=1, batch_size_per_rank=30, seed=seed)
    batches = PixelBatches(*a_training_set(60), (0, 1), config)
    assert len(batches._order.of_epoch(10**6)) == 2


def test_batches_attest_their_buffers():
    images, labels = a_training_set(640)
    batches = PixelBatches(images.double(), labels, (1, 2), a_config(batch_size_per_rank=32))
    assert batches.attest() == {
        "samples": len(next(iter(batches))[0]),
        "dtype": "torch.float64",
        "shard": [1, 2],
        "training_samples": 640,
    }
    assert batches.attest()["samples"] == 32


# ---- images ----


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
