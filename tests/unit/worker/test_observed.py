"""What a rank attests comes from the live objects, and what it observes, from its first step and its test."""

from __future__ import annotations

import copy
import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from backends import base
from compare.schema.results import Evaluation
from compare.worker import compilation
from compare.worker.attest import _attest_gpu, _attest_optimizer
from compare.worker.blocks import Side
from compare.worker.compilation import compiled_for_proof, not_compiled
from compare.worker.mnist import MnistTask, build_model, optimizer_maker
from compare.worker.observed import take_first_step
from compare.worker.observed import test_model as take_test
from tests.unit.factories import a_config

CPU = torch.device("cpu")
FLOAT, BFLOAT = "torch.float32", "torch.bfloat16"


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_attest_optimizer_reads_the_held_learning_rate(name):
    config = a_config(optimizer=name, learning_rate=0.5)
    optimizer = optimizer_maker(config)(build_model("mlp").parameters())
    assert _attest_optimizer(optimizer)["groups"][0]["lr"] == 0.5
    optimizer.param_groups[0]["lr"] = 0.125
    attested = _attest_optimizer(optimizer)
    assert attested["groups"][0]["lr"] == 0.125
    assert attested["class"].lower() == name
    assert "params" not in attested["groups"][0]
    assert json.loads(json.dumps(attested))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("580.159.04, 1980, [N/A], 700.00", ["580.159.04", 1980, None, 700]),
        ("", [None, None, None, None]),
        (None, [None, None, None, None]),
    ],
)
def test_attest_gpu_reads_what_the_driver_tells(tmp_path, monkeypatch, told, expected):
    """Without a driver's program, only the memory is known."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if told is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable}\nprint({told!r})\n")
        program.chmod(0o755)
    properties = SimpleNamespace(uuid="0", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = _attest_gpu(torch.device("cuda", 0))
    assert found.pop("memory_bytes") == 80 << 30
    assert list(found) == ["driver", "clock_mhz", "clock_limit_mhz", "power_limit_watts"]
    assert list(found.values()) == expected


# ---- the first step ----


def a_task(**changes):
    config = a_config("ddp", ranks=1, model="mlp:784-4-10", **changes)
    return MnistTask(config, None, torch.rand(80, 784), torch.arange(80) % 10)


def prepared(task):
    group = SimpleNamespace(rank=0, world_size=1)
    replica = base.Replica(task.build_model(), task.make_optimizer, group, {})
    task.prepare(replica)
    return replica


def attested(task):
    side = Side(prepared(task), iter(task.batches((0, 1))), task.loss)
    return take_first_step(side, task.config, CPU, is_counted=False).attested


@pytest.fixture
def counts(monkeypatch):
    """Compile without a compiler of C++, and count the runs of graphs."""
    runs = []

    def backend(graph, _inputs):
        def run(*inputs):
            runs.append(graph)
            return graph(*inputs)

        return run

    compiling = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiling(function, backend=backend))
    yield runs
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("kind", "autocast", "compiled"),
    [("float64", False, True), ("float32", False, False), ("as run", True, True)],
)
def test_gates_have_no_autocast_and_that_in_float32_does_not_compile(kind, autocast, compiled):
    task = a_task(precision="bf16-autocast").for_proof(kind)
    assert (BFLOAT in attested(task)["activation_dtypes"]) is autocast
    assert a_task(compile=True).for_proof(kind).config.compile is compiled


def test_a_model_of_torchs_own_class_is_compiled_and_its_copies_are_not(counts):
    task = a_task(compile=True)
    model, (inputs, _) = prepared(task).model, next(iter(task.batches((0, 1))))
    assert isinstance(model, nn.Sequential)
    assert [name for name, _ in model.named_parameters()][:2] == ["0.weight", "0.bias"]
    found = model(inputs)
    assert len(counts) == 1
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied[0].weight.zero_()
    assert not torch.equal(copied(inputs), found), "a copy calls its own layers"
    with not_compiled(task.config):
        model(inputs)
    assert len(counts) == 1


def test_the_first_step_counts_graphs_and_their_breaks(counts):
    assert attested(a_task(compile=True)) == {
        "activation_dtypes": [FLOAT],
        "compiled_graphs": 1,
        "graph_breaks": 0,
    }
    assert attested(a_task())["compiled_graphs"] == 0


def test_the_proof_draws_as_a_model_that_is_not_compiled(counts):
    from torch._inductor import config as inductor

    with compiled_for_proof(SimpleNamespace(compile=True)):
        assert inductor.fallback_random
    assert not inductor.fallback_random


def test_a_run_that_does_not_compile_loads_no_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", None)
    compilation.load_compiler(a_config(), CPU)


# ---- the test after the training, as one rank of two ----


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
