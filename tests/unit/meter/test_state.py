"""What is kept before a local block, and put back after it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from compare.meter.state import State


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def values(model, optimizer):
    """Everything that a checkpoint would hold, but the settings of groups."""
    return copy.deepcopy([model.state_dict(), optimizer.state_dict()["state"]])


def make(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return model, kind(model.parameters())


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.AdamW,
        torch.optim.Adagrad,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.LBFGS(parameters, max_iter=2),
    ],
    ids=["adamw", "adagrad", "momentum", "lbfgs"],
)
@pytest.mark.parametrize("before", [0, 3])
def test_put_back_restores_models_and_optimizers(kind, before):
    model, optimizer = make(kind)

    def steps(count):
        def closure():
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            return loss

        for _ in range(count):
            optimizer.step(closure)

    steps(before)
    state = State([model], [optimizer])
    state.keep()
    old = values(model, optimizer)
    steps(3)
    assert not torch.equal(values(model, optimizer)[0]["0.weight"], old[0]["0.weight"])
    state.put_back()
    torch.testing.assert_close(values(model, optimizer), old, rtol=0, atol=0)
    steps(1)  # it can go on


def test_put_back_keeps_the_objects_that_a_script_holds():
    model, optimizer = make(torch.optim.Adam)
    train(model, optimizer, 1)
    weight, moment = model[0].weight, optimizer.state[model[0].weight]["exp_avg"]
    state = State([model], [optimizer])
    state.keep()
    train(model, optimizer, 1)
    state.put_back()
    assert model[0].weight is weight
    assert optimizer.state[weight]["exp_avg"] is moment


def test_put_back_leaves_learning_rates_to_the_schedule():
    model, optimizer = make(lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    state = State([model], [optimizer])
    state.keep()
    optimizer.param_groups[0]["lr"] = 0.5
    state.put_back()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_an_optimizer_that_begins_within_a_block_is_put_back():
    model, first = make(torch.optim.Adam)
    second = torch.optim.Adam(model.parameters())
    state = State([model], [first])
    state.keep()
    state.add(second)
    train(model, second, 1)
    state.put_back()
    assert not second.state


def test_size_is_that_of_the_copies_each_tensor_once():
    model, optimizer = make(torch.optim.Adam)
    train(model, optimizer, 1)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    steps = 4 * len(list(model.parameters()))
    assert State([model, model], [optimizer]).size_bytes == 3 * parameters + buffers + steps


def test_a_scaler_forgets_the_infinite_gradient_of_an_undone_step():
    model, optimizer = make(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    state = State([model], [optimizer], [scaler])
    scaler.scale(model(torch.randn(8, 4)).mean()).backward()
    state.keep()
    model[0].weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    state.put_back()
    scaler.update()
    assert scaler.get_scale() == 1024.0


def test_copies_of_tensors_that_are_gone_are_dropped():
    model, optimizer = make(torch.optim.Adam)
    train(model, optimizer, 1)
    state = State([model], [optimizer])
    counts = []
    for _ in range(3):
        state.keep()
        counts.append(len(state._copies))
        for values_of_parameter in optimizer.state.values():
            values_of_parameter["exp_avg"] = values_of_parameter["exp_avg"].clone()
    assert counts == counts[:1] * 3
