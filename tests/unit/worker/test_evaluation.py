"""The test after the training, as one rank of two."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from compare.schema.results import Evaluation
from compare.worker.evaluation import test_model as take_test
from tests.unit.factories import a_config


class Replica:
    shard = (1, 2)

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.model.register_buffer("seen", torch.tensor([True, False]))
        self.model.register_buffer("nothing", torch.zeros(0))

    def whole(self):
        return self.model


class Group:
    """Rank 0 has ones in every byte."""

    rank, world_size = 1, 2

    def broadcast_(self, tensor, root):
        assert root == 0
        assert tensor.dtype == torch.uint8
        tensor.fill_(1)


class Task:
    config = a_config()

    def __init__(self):
        self.tested = []

    def in_precision(self):
        return nullcontext()

    def test(self, model, shard, note):
        assert shard == Replica.shard
        note()
        self.tested = [buffer.clone() for buffer in model.buffers()]
        return Evaluation(correct=1, samples=2, loss_sum=3.0)


@pytest.mark.parametrize("communicates", [True, False])
def test_every_rank_tests_the_first_ones_buffers(communicates):
    replica, task = Replica(), Task()
    own = [buffer.clone() for buffer in replica.model.buffers()]
    trained = take_test(task, replica, Group(), lambda: None, communicates=communicates)
    ones = [buffer.view(-1).view(torch.uint8) for buffer in task.tested]
    assert all(bool((held == 1).all()) for held in ones) == communicates
    assert all(map(torch.equal, replica.model.buffers(), own)), "the training goes on with its own"
    assert trained.evaluation.samples == 2


def test_buffers_have_a_hash_apart_from_the_parameters():
    group, note = SimpleNamespace(rank=1, world_size=2), lambda: None
    replica = Replica()
    before = take_test(Task(), replica, group, note, communicates=False)
    replica.model[1].running_mean.fill_(3)
    after = take_test(Task(), replica, group, note, communicates=False)
    assert before.final_hash == after.final_hash
    assert before.buffer_hash != after.buffer_hash
    replica.model = nn.Linear(2, 2)
    assert take_test(Task(), replica, group, note, communicates=True).buffer_hash == ""
