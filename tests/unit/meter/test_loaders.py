"""How many steps an epoch still has."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader, IterableDataset

from compare.meter.loaders import Loaders, Progress, find_iterators


@pytest.fixture
def loaders():
    return Loaders(find_iterators)


def take(iterator, count):
    for _ in range(count):
        next(iterator)


def test_progress_counts_the_batches_that_are_left(loaders):
    iterator = iter(DataLoader(range(40), batch_size=2))
    take(iterator, 5)
    assert loaders.progress(5) == Progress(15, 20)
    take(iterator, 1)
    assert loaders.progress(1) == Progress(14, 20)


def test_progress_is_in_steps_where_a_step_takes_several_batches(loaders):
    iterator = iter(DataLoader(range(40), batch_size=2))
    take(iterator, 4)
    loaders.progress(1)
    take(iterator, 4)
    assert loaders.progress(1) == Progress(3, 5)


def test_progress_follows_the_next_epoch_and_not_one_that_rests(loaders):
    training, other = DataLoader(range(40)), iter(DataLoader(range(9)))
    take(iter(training), 40)
    take(other, 1)
    loaders.progress(40)
    iterator = iter(training)
    take(iterator, 3)
    assert loaders.progress(3) == Progress(37, 40)


def test_progress_is_unknown_for_streams_and_without_a_loader(loaders):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(100))

    take(iter(DataLoader(Stream())), 3)
    assert loaders.progress(3) == Progress()
    assert loaders.progress(3) == Progress()
