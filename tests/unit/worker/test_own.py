"""A workload of the user's own, on one rank, and batches of any kind."""

from __future__ import annotations

import re
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from backends.base import BackendError, Replica
from compare import data
from compare.worker.mnist import PixelBatches
from compare.worker.own import OwnTask, dimension_of_samples, move, shapes_of, tensors_of
from compare.worker.parity import Proof
from compare.worker.reference import Reference
from compare.worker.user_file import load_workload
from compare.worker.watchdog import PassTimer
from compare.workload import Workload, WorkloadError
from tests.unit.factories import a_config

CPU = torch.device("cpu")
INPUTS = torch.arange(40.0).view(20, 2)
DATA = torch.utils.data.TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))
ONE_RANK = a_config("ddp", ranks=1, batch_size_per_rank=2, steps=9, warmup_steps=1)
TWO_RANKS = a_config("ddp", ranks=2, batch_size_per_rank=2, steps=9, warmup_steps=1)
TIMER = PassTimer(
    SimpleNamespace(note=lambda *_, **__: None, stall_seconds=30.0), SimpleNamespace(rank=0, world_size=1)
)
ALONE = partial(Replica, group=SimpleNamespace(rank=0, world_size=1), options={})
RIGHT = """
from torch import nn
import torch
from compare.workload import Workload
def make():
    data = [(torch.ones(2), torch.ones(1))] * 8
    return Workload(model=nn.Linear(2, 1), data=data, loss=None, optimizer=None)
"""


def a_workload(**changes):
    return Workload(
        **{
            "model": nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1)),
            "data": DATA,
            "loss": lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
            "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        }
        | changes
    )


def a_task(config=TWO_RANKS, **changes):
    return OwnTask(config, lambda: a_workload(**changes), CPU)


def load(config, workload):
    source = data.own_source(workload)
    return OwnTask(config, load_workload(source, config.seed), CPU)


def test_batches_take_the_samples_that_the_built_in_models_would():
    config = a_config("ddp", ranks=2, batch_size_per_rank=3, accumulate=2, steps=9, warmup_steps=1)
    images, labels = torch.randn(40, 784, dtype=torch.float64), torch.arange(40)
    theirs = PixelBatches(images, labels, (1, 2), config)
    task = a_task(config, data=torch.utils.data.TensorDataset(images, labels))
    for ours, (inputs, targets) in islice(zip(task.batches((1, 2)), theirs, strict=False), 20):
        assert torch.equal(ours[0], inputs)
        assert torch.equal(ours[1], targets)


def test_batches_attest_without_a_change_of_the_generators():
    batches, before = a_task().batches((1, 2)), torch.get_rng_state()
    attested = batches.attest()
    assert attested == {"samples": 2, "dtype": "torch.float32", "shard": [1, 2], "training_samples": 20}
    assert torch.equal(torch.get_rng_state(), before)


def test_schedule_sets_the_rates_and_clipping_comes_before_the_step():
    clipped = []
    task = a_task(schedule=lambda step: 1 / (step + 1), before_step=clipped.append)
    model, before_step = task.build_model(), task.before_step()
    optimizer = task.make_optimizer(model.parameters())
    rates = []
    for _ in range(3):
        before_step(model, [optimizer])
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.5, 0.25, 0.5 / 3])
    assert clipped == [[], [], []], "no parameter has a gradient yet"
    assert a_task().before_step() is None


@pytest.mark.parametrize(("averages", "parts", "size"), [(True, 1, 2), (False, 4, 2), (True, 3, 3)])
def test_proof_of_a_replica_has_its_parts_and_averaged_gradients(averages, parts, size):
    task = a_task(before_step=lambda _: None)
    replica = SimpleNamespace(averages_gradients=averages, parts_per_pass=parts)
    proven = task.for_proof_of(replica)
    assert proven.config.batch_size_per_rank == size
    assert proven.changes_gradients is averages
    assert task.changes_gradients


@pytest.mark.parametrize(
    ("kind", "own_step", "dtype", "rate"),
    [
        ("float64", None, torch.float64, 0.01),
        ("float64", print, torch.float64, 0.01),
        ("as run", None, torch.float32, 0.5),
    ],
)
def test_gates_train_by_plain_sgd_and_the_curve_as_the_user_does(kind, own_step, dtype, rate):
    """Of the gates, only a step of the user's own follows the schedule."""
    task = a_task(schedule=lambda _: 0.0, own_step=own_step).for_proof(kind)
    model = task.build_model()
    assert model[0].weight.dtype == dtype
    assert next(iter(task.batches((0, 1))))[0].dtype == dtype
    assert task.make_optimizer(model.parameters()).param_groups[0]["lr"] == rate
    assert (task.before_step() is None) == (kind != "as run" and not own_step)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_every_sample_is_tested_once(shards):
    inputs = torch.arange(14.0).view(7, 2)
    held = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    task = a_task(test_data=held, metric=lambda model, batch: batch[1].mean())
    model = task.build_model()
    parts = [task.test(model, (index, shards), lambda: None) for index in range(shards)]
    assert sum(part.samples for part in parts) == 7
    assert sum(part.correct for part in parts) == pytest.approx(float(inputs.sum()))
    expected = nn.functional.mse_loss(model.eval()(inputs), inputs.sum(1, keepdim=True))
    assert sum(part.loss_sum for part in parts) / 7 == pytest.approx(expected.item(), rel=1e-5)
    assert a_task().test(a_task().build_model(), (0, 1), lambda: None).correct is None


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def make(): return 3", "returned int. Return a compare.workload.Workload"),
        ("make = 3", "has no function make"),
        ("", "has no function make"),
        (RIGHT, "has 8 training samples, but a step of all ranks takes 10"),
    ],
)
def test_wrong_factory_is_refused(tmp_path, code, says):
    (tmp_path / "wrong.py").write_text(code)
    config = a_config("ddp", ranks=2, batch_size_per_rank=5, steps=9, warmup_steps=1)
    with pytest.raises(WorkloadError, match=says):
        load(config, f"{tmp_path}/wrong.py:make")


CHANGES = {
    "right.py was changed": lambda folder: (folder / "right.py").write_text(RIGHT + "\n"),
    "tools/other.py was removed": lambda folder: (folder / "tools" / "other.py").unlink(),
    "tools/made.py is new": lambda folder: (folder / "tools" / "made.py").touch(),
    "0.py is new, 1.py is new, 2.py is new, and 6 more": lambda folder: [
        (folder / f"{number}.py").touch() for number in range(9)
    ],
}


@pytest.mark.parametrize("named", CHANGES)
def test_folder_that_was_changed_is_refused_with_the_names_of_the_files(tmp_path, named):
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "other.py").touch()
    source = data.own_source(f"{tmp_path}/right.py:make")
    CHANGES[named](tmp_path)
    (tmp_path / "log").write_text("what a run leaves is no part of it")
    with pytest.raises(WorkloadError, match=rf"since the run began: {re.escape(named)}\."):
        load_workload(source, 0)


def test_folder_of_very_many_files_is_refused_without_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr("compare.data.own._MOST_NAMED", 1)
    for name in ("right.py", "other.py"):
        (tmp_path / name).write_text(RIGHT)
    source = data.own_source(f"{tmp_path}/right.py:make")
    assert source.code == {}
    (tmp_path / "other.py").unlink()
    with pytest.raises(WorkloadError, match="one of more than 1 Python files was changed"):
        load_workload(source, 0)


# ---- a loader and a step of the user's own ----


def loads(rank, ranks, size):
    sampler = torch.utils.data.DistributedSampler(DATA, ranks, rank)
    return torch.utils.data.DataLoader(DATA, size, sampler=sampler)


def shuffles(rank, ranks, size):
    return torch.utils.data.DataLoader(DATA, size, shuffle=True)


def test_own_loader_gives_each_epoch_anew_and_whole_batches():
    batches = a_task(loader=loads).batches((1, 2))
    taken = [inputs[:, 0].tolist() for inputs, _ in islice(batches, 10)]
    assert all(len(batch) == 2 for batch in taken)
    first, second = (set(chain.from_iterable(taken[begin:][:5])) for begin in (0, 5))
    assert first != second, "the sampler gets the epoch"
    assert len(first) == 10
    assert batches.attest() == {
        "samples": 2,
        "dtype": "torch.float32",
        "shard": [1, 2],
        "training_samples": 20,
        "samples_of_an_epoch": 10,
        "loader_workers": 0,
    }


def test_own_loader_that_shuffles_is_the_same_when_called_again():
    task, before = a_task(loader=shuffles), torch.get_rng_state()
    first, again = ([inputs for inputs, _ in islice(task.batches((0, 2)), 10)] for _ in range(2))
    assert all(map(torch.equal, first, again))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("changes", "shards", "error", "says"),
    [
        ({}, 3, BackendError, "3 shards do not divide"),
        ({"data": iter([])}, 1, WorkloadError, r"has no len\(\) or no index"),
        ({"loader": lambda *_: shuffles(0, 1, 7)}, 2, WorkloadError, "begin with a batch of 2 samples"),
    ],
)
def test_batches_that_cannot_be_made_are_refused(changes, shards, error, says):
    with pytest.raises(error, match=says):
        next(iter(a_task(**changes).batches((0, shards))))


def test_own_step_is_needed_by_its_arm():
    with pytest.raises(WorkloadError, match="Set own_step in your Workload"):
        a_task().make_step  # noqa: B018 -- the property raises
    assert a_task(own_step=loads).make_step is loads


@pytest.mark.parametrize(("loader", "shared"), [(loads, 0.0), (shuffles, 1.0)])
def test_proof_counts_the_samples_that_shards_share(loader, shared):
    task = a_task(loader=loader)
    replica = SimpleNamespace(shard=(0, 2), broadcasts_buffers=False, parts=lambda batch: [batch])
    model = task.build_model()
    reference = Reference(task, replica, model, TIMER, drifts=False)
    for step in range(4):
        reference.start_from(model)
        reference.step(step)
    assert reference.shared_samples == shared


def counting():
    """Return a factory whose loss grows with its calls, and the counts of all its workloads."""
    counts = []

    def make():
        calls = [0]
        counts.append(calls)

        def loss(model, batch):
            calls[0] += 1
            return nn.functional.mse_loss(model(batch[0]), batch[1]) * min(1.0, calls[0] / 50)

        return a_workload(loss=loss)

    return make, counts


def test_proof_carries_state_in_a_closure_and_leaves_that_of_the_training():
    make, counts = counting()
    task = OwnTask(ONE_RANK, make, CPU).for_proof("float64")
    assert Proof(ALONE, task, "float64", TIMER, compares=True).take().is_exact
    assert counts[0] == [0], "the training's own loss was never called"
    assert max(calls[0] for calls in counts) == 20


def test_factory_that_takes_long_is_called_once_and_its_model_copied(monkeypatch):
    monkeypatch.setattr("compare.worker.user_file._MOST_SECONDS", 0.0)
    make, counts = counting()
    task = OwnTask(ONE_RANK, make, CPU)
    first, other = task.build_model(), task.anew().build_model()
    assert len(counts) == 1
    assert task.attest() == {"function_called_once": True}, "the table says so"
    assert first is not other
    assert all(torch.equal(one, two) for one, two in zip(first.parameters(), other.parameters(), strict=True))


def test_file_that_is_imported_slowly_has_no_slow_factory(tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.5)\n" + RIGHT)
    task = load(ONE_RANK, f"{tmp_path}/slow.py:make")
    assert task.attest() == {"function_called_once": False}


def test_optimizer_of_other_parameters_is_refused():
    others = [nn.Parameter(torch.zeros(3))]
    task = a_task(optimizer=lambda parameters: torch.optim.SGD([*parameters, *others], lr=0.1))
    with pytest.raises(WorkloadError, match=r"1 of the optimizer's 5 parameters .* \(shapes \(3,\)\)"):
        task.make_optimizer(task.build_model().parameters())


def test_complex_parameters_stay_complex_in_the_proof():
    task = a_task(model=nn.Linear(2, 1, dtype=torch.complex64))
    assert task.for_proof("float64").build_model().weight.dtype == torch.complex128


# ---- batches of any structure ----


@dataclass(frozen=True)
class Frozen:
    rows: torch.Tensor
    names: tuple[str, ...] = ("a",)
    later: torch.Tensor = field(init=False, default_factory=lambda: torch.ones(1))


@dataclass(slots=True)
class Slotted:
    rows: torch.Tensor


class Pair(NamedTuple):
    rows: torch.Tensor
    names: list[str]


class Attributes:
    def __init__(self, rows):
        self.rows = rows
        self.itself = self


ROWS = torch.ones(2, 3)
BATCHES = {
    "a tensor": ROWS,
    "a tuple": (ROWS, "x", None),
    "a list": [[ROWS]],
    "a named tuple": Pair(ROWS, ["x"]),
    "a dictionary": {"rows": ROWS},
    "an ordered one": OrderedDict(rows=ROWS),
    "a default one": defaultdict(list, rows=ROWS),
    "a user's one": UserDict(rows=ROWS),
    "a read-only one": MappingProxyType({"rows": ROWS}),
    "a frozen data class": Frozen(ROWS),
    "a data class with slots": Slotted(ROWS),
    "a namespace": SimpleNamespace(rows=ROWS),
    "an object that holds itself": Attributes(ROWS),
    "a packed sequence": pack_sequence([ROWS[0], ROWS[1][:2]], enforce_sorted=False),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_move_changes_the_floats_in_a_batch_of_any_kind(batch):
    moved = move(batch, CPU, torch.float64)
    assert type(moved) is type(batch)
    floats = [tensor for tensor in tensors_of(moved) if tensor.is_floating_point()]
    assert floats
    assert {tensor.dtype for tensor in floats} == {torch.float64}
    assert {t.dtype for t in tensors_of(batch) if t.is_floating_point()} == {torch.float32}


def test_move_keeps_what_is_no_float():
    assert move(BATCHES["a default one"], CPU, torch.float64)["none"] == []
    assert move(BATCHES["a named tuple"], CPU, torch.float64).names == ["x"]
    packed = move(BATCHES["a packed sequence"], CPU, torch.float64)
    assert packed.batch_sizes.dtype == torch.int64
    assert move(torch.ones(2, dtype=torch.complex64), CPU, torch.float64).dtype == torch.complex128
    whole, function = move((torch.ones(2, dtype=torch.int32), len), CPU, torch.float64)
    assert (whole.dtype, function) == (torch.int32, len)


@pytest.mark.parametrize(
    ("batch", "size", "place"),
    [
        ((torch.ones(4, 9), torch.ones(4)), 4, (0, 0)),
        ((torch.ones(7, 4, 9), torch.ones(4)), 4, (1, 0)),
        ((torch.ones(7, 4, 9), torch.ones(7, 4)), 4, (0, 1)),
        ((torch.ones(3, 4), torch.ones(3)), 4, None),
        ((torch.ones(3, 4), torch.ones(3, 1)), 4, None),
        (BATCHES["a packed sequence"], 2, (0, 0)),
    ],
)
def test_samples_are_counted_in_the_first_dimension_or_after_time(batch, size, place):
    assert dimension_of_samples(shapes_of(batch), size) == place
