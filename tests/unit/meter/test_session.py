"""What the meter leaves behind in a process once it has measured, or gave up."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from compare.meter.ddp import Ddp
from compare.meter.ranks import DisagreementError, StoreRanks
from compare.meter.recorder import ended_early
from compare.meter.session import Session
from compare.meter.state import State
from compare.schema.metered import METER_FILE, MeterSettings, read_metered

pytestmark = pytest.mark.usefixtures("frozen_torch")
SETTINGS = MeterSettings(pairs=2, block=3, warmup=3)
ENOUGH = 60


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()  # a wrapper that another test left behind would be taken for one of the next script


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


def loop(session, optimizer, gradients, steps=ENOUGH):
    """Take steps in which a metric is averaged beside gradients now and then."""
    for step in range(steps):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        if step % 4 == 0:
            dist.all_reduce(torch.ones(1))
        for parameter in optimizer.param_groups[0]["params"] if gradients(step) else ():
            dist.all_reduce(parameter.grad)
        session.before_step(optimizer)
        optimizer.step()
        session.after_step(optimizer)


def test_parameters_that_no_module_holds_are_measured(session, tmp_path):
    optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)])
    loop(session, optimizer, lambda _: True)
    record = read_metered(tmp_path / METER_FILE)
    assert record.ended == "Everything was measured."
    assert not [block for block in record.blocks if block.discarded]
    assert [(block.pair, block.steps) for block in record.of("isolated")] == [(n, 1) for n in range(10)]


def test_blocks_with_a_step_that_averages_no_gradients_do_not_count(session, tmp_path):
    optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)])
    loop(session, optimizer, lambda step: step < 5 or step % 4)
    record = read_metered(tmp_path / METER_FILE)
    assert record.ended == "Only 0 of 4 pairs could be used."
    assert "a step called all_reduce otherwise" in record.blocks[0].discarded


def test_a_hook_of_the_script_leaves_its_messages_untimed(session, tmp_path):
    model, synchronise = ddp()
    model.register_comm_hook(None, allreduce_hook)
    train(session, model, synchronise)
    record = read_metered(tmp_path / METER_FILE)
    assert record.ended == "Everything was measured."
    assert record.of("isolated") == []
    assert "All-reduces were not timed alone" in record.notes[-1]


def with_another(monkeypatch, change):
    """Let a second rank tell what this one does, less a change, and return all that was exchanged."""
    exchange, all_values = StoreRanks.exchange, []

    def exchange_with_another(ranks, value):
        mine = exchange(ranks, value)[0]
        other = mine | ({"facts": mine["facts"] | {"rank": 1}} if "facts" in mine else {})
        all_values.append([mine, other | change(mine)])
        return all_values[-1]

    monkeypatch.setattr(StoreRanks, "exchange", exchange_with_another)
    return all_values


def test_no_rank_begins_a_block_if_another_could_not_keep_its_state(session, tmp_path, monkeypatch):
    with_another(monkeypatch, lambda mine: {"failed": "no memory"} if mine.get("kind") == "local" else {})
    model, synchronise = ddp()
    switched = []
    monkeypatch.setattr(Ddp, "switch", lambda _, *, on: switched.append(on))
    train(session, model, synchronise)
    assert all(switched)
    assert read_metered(tmp_path / METER_FILE).ended == "Rank 1 could not keep what is put back: no memory."


def test_a_rank_that_cannot_keep_its_state_tells_the_others(session, tmp_path, monkeypatch):
    def fail(_):
        raise MemoryError("full")

    values = with_another(monkeypatch, lambda _: {})
    monkeypatch.setattr(State, "keep", fail)
    train(session, *ddp())
    assert values[-1][0]["failed"] == "MemoryError('full')"
    assert "Rank 0 could not keep what is put back" in read_metered(tmp_path / METER_FILE).ended


def test_all_ranks_learn_that_the_record_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    session = Session(SETTINGS, str(tmp_path / "file" / "folder"))
    values = with_another(monkeypatch, lambda _: {})
    train(session, *ddp())
    reason = f"its folder {tmp_path / 'file' / 'folder'} cannot be made (Not a directory)"
    assert [mine["refused"] for mine, _ in values] == [reason]
    assert session.ended == f"Rank 0 cannot be measured: {reason}."


def test_ranks_that_synchronise_different_models_are_refused(session, tmp_path, monkeypatch):
    with_another(monkeypatch, lambda mine: {"synchronised": mine.get("synchronised", [])[1:]})
    train(session, *ddp())
    assert read_metered(tmp_path / METER_FILE).ended == "Rank 1 takes other steps than rank 0."


@pytest.mark.parametrize("is_first", [True, False])
def test_of_several_groups_that_of_the_first_rank_writes(session, tmp_path, monkeypatch, is_first):
    monkeypatch.setattr(dist, "get_world_size", lambda _=None: 4)
    session._recorder.is_first = is_first
    train(session, *ddp())
    assert (tmp_path / METER_FILE).exists() is is_first
    if is_first:
        (note,) = read_metered(tmp_path / METER_FILE).notes
        assert note.startswith("Its ranks are 0 of 4")


@pytest.mark.parametrize(
    ("steps", "says"),
    [(20, "All pairs need at least 1072 steps."), (1072, "let it train longer, or set --pairs")],
)
def test_a_script_that_ended_early_learns_what_helps(steps, says):
    text = ended_early(steps, MeterSettings().steps_needed)
    assert text.startswith(f"The script ended after {steps} steps.")
    assert says in text
