"""The memory of one step by kind, with replicas of one process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from backends.base import Replica
from compare.worker.blocks import Side
from compare.worker.held import take_counted_step
from tests.unit.factories import a_config

CONFIG = a_config("ddp", ranks=1)
BATCH, WIDTH, HIDDEN = 8, 16, 32
FLOAT = 4
OF_ONE = BATCH * HIDDEN * FLOAT
OF_HIDDEN = 2 * OF_ONE
WEIGHTS = FLOAT * (WIDTH * HIDDEN + HIDDEN + HIDDEN + 1)


class Model(nn.Module):
    """Two layers; ``forward`` saves the results of two functions between, as layers do."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.again = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1), again

    def forward(self, batch):
        return self.last(
            checkpoint(self.hidden, batch, use_reentrant=False) if self.again else self.hidden(batch)
        )

    def hidden(self, batch):
        return torch.sigmoid(torch.relu(self.first(batch)))


def counted(loss=lambda model, batch: model(batch).sum(), *, passes=1, replica=Replica, again=False):
    """Return what is counted in the second step, and the parameters after it."""
    torch.manual_seed(0)
    made = replica(
        Model(again=again),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        SimpleNamespace(rank=0, world_size=1),
        {},
    )
    made.accumulate(passes)
    side = Side(made, iter([torch.ones(BATCH, WIDTH)] * 9), loss)
    side.train(1)
    held = take_counted_step(side, CONFIG)
    return held, [parameter.detach().clone() for parameter in made.parameters]


def test_counted_step_counts_once_what_backward_needs():
    held, _ = counted()
    assert held == {"gradient_bytes": WEIGHTS, "library_bytes": 0, "activation_bytes": OF_HIDDEN}


def test_counted_step_counts_each_pass_by_itself():
    assert counted(passes=3)[0]["activation_bytes"] == OF_HIDDEN


def test_counted_step_counts_passes_together_whose_graphs_live_together():
    def loss(model, batch):
        return model(batch).sum() + model(batch * 2).sum()  # the product is no input: its layer saves it

    assert counted(loss)[0]["activation_bytes"] == 2 * OF_HIDDEN + BATCH * WIDTH * FLOAT


def test_counted_step_leaves_out_what_a_checkpoint_computes_again():
    assert counted(again=True)[0]["activation_bytes"] == OF_ONE, "the last layer's input is kept"


@pytest.mark.parametrize("function", [torch.vmap, lambda f: lambda x: torch.func.vjp(f, x)[0]])
def test_counted_step_runs_functions_that_refuse_hooks(function):
    def loss(model, batch):
        torch.vmap(function(torch.sin))(batch)
        return model(batch).sum()

    assert counted(loss)[0]["activation_bytes"] == OF_HIDDEN


def test_counted_step_trains_what_a_plain_step_trains():
    counted_parameters = counted()[1]
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(BATCH, WIDTH)).sum().backward()
        optimizer.step()
    assert all(map(torch.equal, counted_parameters, model.parameters()))


def test_counted_step_knows_no_bytes_of_a_library_that_tells_none():
    class Silent(Replica):
        def library_bytes(self):
            return None

    assert counted(replica=Silent)[0]["library_bytes"] is None
