"""Precision and compilation, and what the first step shows of them."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from backends.strategies.local import LocalReplica
from compare.worker import compilation
from compare.worker.blocks import Side
from compare.worker.compilation import compiled_for_proof, not_compiled
from compare.worker.first_step import take_first_step
from compare.worker.mnist import MnistTask
from tests.unit.factories import a_config

CPU = torch.device("cpu")
FLOAT, BFLOAT = "torch.float32", "torch.bfloat16"


def a_task(**changes):
    config = a_config("ddp", ranks=1, model="mlp:784-4-10", **changes)
    return MnistTask(config, None, torch.rand(80, 784), torch.arange(80) % 10)


def prepared(task):
    group = SimpleNamespace(rank=0, world_size=1)
    replica = LocalReplica(task.build_model(), task.make_optimizer, group, {})
    task.prepare(replica)
    return replica


def attested(task):
    side = Side(prepared(task), iter(task.batches((0, 1))), task.loss)
    return take_first_step(side, task.config, CPU).attested


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


@pytest.mark.parametrize(("precision", "dtypes"), [("float32", [FLOAT]), ("bf16-autocast", [BFLOAT, FLOAT])])
def test_the_first_step_shows_the_dtypes_of_activations(precision, dtypes):
    task = a_task(precision=precision)
    assert attested(task)["activation_dtypes"] == dtypes
    assert {parameter.dtype for parameter in task.build_model().parameters()} == {torch.float32}


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
