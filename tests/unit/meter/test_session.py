"""What the meter leaves behind in a process once it has measured, or gave up."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from compare.meter.ranks import DisagreementError, StoreRanks
from compare.meter.recorder import ended_early
from compare.meter.session import Session
from compare.schema.metered import METER_FILE, MeterSettings, read_metered

SETTINGS = MeterSettings(pairs=2, block=3, warmup=3)
ENOUGH = 60


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def session(tmp_path):
    return Session(SETTINGS, str(tmp_path))


def ddp():
    model = DistributedDataParallel(nn.Linear(4, 2))
    return model, lambda: None


def by_hand():
    model = nn.Linear(4, 2)
    return model, lambda: [dist.all_reduce(parameter.grad) for parameter in model.parameters()]


def train(session, model, synchronise, optimizer=None, steps=ENOUGH):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        synchronise()
        session.before_step(optimizer)
        optimizer.step()
        session.after_step(optimizer)
    return weakref.ref(optimizer)


def live_bytes():
    """Memory of all tensors in this process."""
    gc.collect()
    return sum(thing.nbytes for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))


@pytest.mark.parametrize("way", [ddp, by_hand])
@pytest.mark.parametrize("gives_up", [False, True], ids=["measured", "gave up"])
def test_models_optimizers_and_copies_are_let_go(session, tmp_path, monkeypatch, way, gives_up):
    if gives_up:
        exchange = StoreRanks.exchange

        def exchange_twice(ranks, value):
            if ranks._calls == 2:
                raise DisagreementError("Rank 1 has left.")
            return exchange(ranks, value)

        monkeypatch.setattr(StoreRanks, "exchange", exchange_twice)
    original = dist.all_reduce, DistributedDataParallel.no_sync, torch.autograd.backward, nn.Module.state_dict
    model, synchronise = way()
    before = live_bytes()
    optimizer = train(session, model, synchronise)
    gc.collect()
    assert read_metered(tmp_path / METER_FILE).ended == (
        "Rank 1 has left." if gives_up else "Everything was measured."
    )
    assert live_bytes() == before + sum(parameter.nbytes for parameter in model.parameters())  # gradients
    assert original == (
        dist.all_reduce,
        DistributedDataParallel.no_sync,
        torch.autograd.backward,
        nn.Module.state_dict,
    )
    model = weakref.ref(model)
    del synchronise
    gc.collect()
    assert (model(), optimizer()) == (None, None)
    session.end()
    assert read_metered(tmp_path / METER_FILE).steps == ENOUGH


def test_a_block_that_is_open_at_the_end_is_undone_and_let_go(session, tmp_path):
    model, synchronise = ddp()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(ENOUGH):
        train(session, model, synchronise, optimizer, steps=1)
        if session._course.is_undoing:
            break
    kept = model.module.weight.detach().clone()
    train(session, model, synchronise, optimizer, steps=1)
    assert not torch.equal(model.module.weight, kept)
    session.end()
    assert torch.equal(model.module.weight, kept)
    assert model.require_backward_grad_sync
    model = weakref.ref(model)
    del optimizer
    gc.collect()
    assert model() is None
    assert "within a local block" in read_metered(tmp_path / METER_FILE).notes[-1]


def test_another_optimizer_in_a_local_block_ends_it_with_its_steps_undone(session, tmp_path):
    model, synchronise = ddp()
    optimizer = torch.optim.AdamW(model.parameters())
    while not session._course.is_undoing:
        train(session, model, synchronise, optimizer, steps=1)
    kept = model.module.weight.detach().clone()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    train(session, model, synchronise, other, steps=101)
    assert torch.equal(model.module.weight, kept)
    assert model.require_backward_grad_sync
    record = read_metered(tmp_path / METER_FILE)
    assert "takes its steps with another optimizer" in record.ended
    before = session._steps.count
    train(session, model, synchronise, other, steps=2)
    assert not torch.equal(model.module.weight, kept)
    session.end()
    assert read_metered(tmp_path / METER_FILE).steps == before + 2


@pytest.mark.parametrize(
    ("steps", "says"),
    [(20, "All pairs need at least 1071 steps."), (1071, "let it train longer, or set --pairs")],
)
def test_a_script_that_ended_early_learns_what_helps(steps, says):
    text = ended_early(steps, MeterSettings().steps_needed)
    assert text.startswith(f"The script ended after {steps} steps.")
    assert says in text
