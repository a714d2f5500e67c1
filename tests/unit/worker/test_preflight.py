"""A workload is tried alone, with errors in the user's words."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import backends
from backends.base import Placement
from compare import data
from compare.worker.outcome import _describe
from compare.worker.own import OwnTask
from compare.worker.preflight import preflight
from compare.worker.user_file import load_workload
from tests.unit.factories import a_config

CPU = torch.device("cpu")
USUAL = """
from contextlib import suppress
import torch
import torch.distributed as dist
from torch import nn
from torch.utils import data as held
from torch.utils.checkpoint import checkpoint
from compare.workload import Workload

ROWS = held.TensorDataset(torch.randn(64, 6), torch.randn(64, 1))

def mse(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1].to(batch[0].dtype))

def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

class Stream(held.IterableDataset):
    def __iter__(self): return iter([])
    def __len__(self): return 64

def spawns(rank, ranks, size):
    return held.DataLoader(
        ROWS, size, num_workers=1, multiprocessing_context='spawn', collate_fn=lambda rows: rows
    )

def asks(rank, ranks, size):
    return held.DataLoader(ROWS, size, sampler=held.DistributedSampler(ROWS))

def a_workload(**changes):
    usual = dict(model=nn.Linear(6, 1), data=ROWS, loss=mse, optimizer=sgd)
    return Workload(**usual | changes)
"""
LIBRARY = """
import torch.distributed as dist
def everyone(x):
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x)
    return x
"""
"""It asks other ranks where a group is."""


@pytest.fixture
def try_out(tmp_path, monkeypatch):
    """Try a file with more code; return what the user reads."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "contrast.py").write_text(LIBRARY)
    monkeypatch.setattr(sys, "path", [str(library), *sys.path])
    monkeypatch.setattr(torch, "set_num_threads", torch.set_num_threads)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()

    def tried(code, backend="ddp", *, own_step=False, **options):
        file = tmp_path / "train.py"
        file.write_text(USUAL + code)
        source = data.own_source(f"{file}:make")
        chosen = {option.name: option.default for option in backends.BACKENDS[backend].options} | options
        config = a_config("ddp", ranks=2, batch_size_per_rank=4, threads_per_rank=threads)
        job = SimpleNamespace(
            config=config,
            dataset=source,
            arm=SimpleNamespace(traits=SimpleNamespace(own_step=own_step), options=chosen),
        )
        try:
            task = OwnTask(config, load_workload(source, config.seed), CPU)
            preflight(job, task, backends.load(backend, chosen)[1], (0, 2), lambda: None)
        except BaseException as error:  # noqa: BLE001 -- as a rank's last words
            failure = _describe(error, Placement(0, 0, 2, 2, "here"), str(tmp_path))
            where = failure.where.removeprefix(f"{file}:")
            return failure.message, (USUAL + code).splitlines()[int(where) - 1].strip() if where else ""
        return task

    yield tried
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    sys.modules.pop("train", None)


GATHERS = """
def loss(model, batch):
    parts = [torch.empty(4, 1) for _ in range(2)]
    dist.all_gather(parts, model(batch[0]).detach().float())
    return mse(model, batch)
def make(): return a_workload(loss=loss)
"""
ASKS = """
def loss(model, batch):
    scale = dist.get_world_size() if dist.is_initialized() else 1
    return mse(model, batch) * scale
def make(): return a_workload(loss=loss)
"""
ASKS_FOR_ITSELF = """
from torch.distributed import all_reduce as add
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g):
        add(g)
        return g
def make(): return a_workload(loss=lambda model, batch: Sum.apply(mse(model, batch)))
"""
BY_A_LIBRARY = """
import contrast
def loss(model, batch):
    contrast.everyone(batch[0])
    return mse(model, batch)
def make(): return a_workload(loss=loss)
"""
IN_THE_METRIC = """
def metric(model, batch):
    found = model(batch[0]).mean()
    with suppress(RuntimeError):
        dist.all_reduce(found)
    return found
def make(): return a_workload(metric=metric)
"""


@pytest.mark.parametrize(
    ("code", "what", "call", "line"),
    [
        (GATHERS, "the loss", "all_gather", "dist.all_gather(parts, model(batch[0]).detach().float())"),
        (ASKS, "the loss", "is_initialized", "scale = dist.get_world_size() if dist.is_initialized() else 1"),
        (ASKS_FOR_ITSELF, "the loss", "all_reduce", "add(g)"),
        (BY_A_LIBRARY, "the loss", "all_reduce", "contrast.everyone(batch[0])"),
        (IN_THE_METRIC, "the test", "all_reduce", "dist.all_reduce(found)"),
    ],
)
def test_preflight_of_a_loss_that_asks_other_ranks_names_its_line(try_out, code, what, call, line):
    message, at = try_out(code)
    assert message.startswith(f"one process cannot compute {what}: it calls torch.distributed.{call}.")
    assert "own_step, and reference_step" in message
    assert at == line
    assert not torch.distributed.is_initialized()


def test_preflight_leaves_a_loss_alone_whose_single_process_the_user_wrote(try_out):
    code = GATHERS.replace("loss=loss", "loss=loss, own_step=print, reference_step=print")
    assert not try_out(code, "own_torch", own_step=True).test_needs_gradients
    assert "one process cannot compute the loss" in try_out(code, "ddp")[0]


MPI = """
def loss(model, batch):
    found = mse(model, batch)
    COMMUNICATOR.allreduce(1)
    return found
def make(): return a_workload(loss=loss)
"""


def test_preflight_of_a_loss_that_uses_mpi_names_its_line(try_out, monkeypatch):
    # MPI itself starts under its launcher alone.
    module = ModuleType("mpi4py.MPI")
    module.Comm = type("Comm", (), {"__module__": "mpi4py.MPI", "allreduce": lambda self, number: number})
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    message, at = try_out("import sys\nCOMMUNICATOR = sys.modules['mpi4py.MPI'].Comm()" + MPI)
    assert "it calls mpi4py.MPI" in message
    assert at == "COMMUNICATOR.allreduce(1)"


PENALTY = """
def loss(model, batch):
    rows = batch[0].detach().requires_grad_(True)
    slope = torch.autograd.grad(model(rows).sum(), rows, create_graph=True)[0]
    return mse(model, batch) + slope.square().mean()
def make(): return a_workload(loss=loss, metric=lambda model, batch: model(batch[0]).mean())
"""


def test_preflight_enables_gradients_only_where_a_test_needs_them(try_out):
    task = try_out(PENALTY)
    assert task.test_needs_gradients
    assert task.test(task.build_model(), (0, 2), lambda: None).loss_sum > 0
    assert not try_out("def make(): return a_workload()").test_needs_gradients


SPARSE = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.Embedding(9, 1, sparse=True)
    def forward(self, words): return self.bag(words)
def make():
    rows = held.TensorDataset(torch.randint(9, (64,)), torch.randn(64, 1))
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
    return a_workload(model=Words(), data=rows, loss=loss)
"""
REENTRANT = """
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
    def forward(self, rows):
        rows = rows.requires_grad_()
        for _ in range(2):
            rows = checkpoint(self.layer, rows, use_reentrant=True)
        return rows[:, :1]
def make(): return a_workload(model=Twice())
"""
UNREACHED = """
def loss(model, batch):
    rows = batch[0].detach().requires_grad_(True)
    return torch.autograd.grad(model(rows).sum(), rows, create_graph=True)[0].square().mean()
def make(): return a_workload(loss=loss)
"""
NORMED = "def make(): return a_workload(model=nn.utils.weight_norm(nn.Linear(6, 1)))"
LOCKED = """
import threading
def make():
    model = nn.Linear(6, 1)
    model.lock = threading.Lock()
    return a_workload(model=model)
"""
STRIDED = """
def make():
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 1))
    model[0].weight = nn.Parameter(torch.randn(6, 3).t())
    return a_workload(model=model)
"""


@pytest.mark.parametrize(
    ("code", "backend", "options", "says"),
    [
        (SPARSE, "manual", {}, "sparse gradients of bag.weight: this arm cannot average them."),
        (SPARSE, "ddp", {}, ""),
        (SPARSE, "manual", {"mode": "per_parameter"}, ""),
        (SPARSE, "fsdp", {}, "sparse gradients of bag.weight"),
        (REENTRANT, "ddp", {}, "Use checkpoint(…, use_reentrant=False)"),
        (REENTRANT, "ddp", {"static_graph": True}, ""),
        (REENTRANT, "manual", {"mode": "overlap"}, ""),
        (UNREACHED, "ddp", {"find_unused_parameters": True}, "find_unused_parameters=true would not help"),
        (UNREACHED, "none", {}, ""),
        (STRIDED, "fsdp", {}, "not contiguous: 0.weight"),
        (STRIDED, "manual", {}, ""),
        (NORMED, "fsdp", {}, "Use torch.nn.utils.parametrizations.weight_norm, or leave this arm out"),
        (NORMED, "ddp", {}, ""),
        (LOCKED, "localsgd", {}, "Keep locks, files and the like out of the model"),
        (LOCKED, "manual", {}, ""),
    ],
)
def test_preflight_refuses_by_name_what_an_arm_cannot_average(try_out, code, backend, options, says):
    found = try_out(code, backend, **options)
    assert says in found[0] if says else isinstance(found, OwnTask), found


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ("model=nn.LazyLinear(1)", "lazy parameters have no shape"),
        ("model=nn.Linear(6, 1, device='meta')", "have no values: weight, bias"),
        ("optimizer=torch.optim.LBFGS", "LBFGS.step() requires a closure, because it may compute the loss"),
        ("data=Stream()", "the workload's data is a stream (Stream)"),
        ("loss=lambda m, b: m(b[0])", "the loss returned a tensor of shape (4, 1)"),
        ("loss=lambda m, b: 1.0", "the loss returned float"),
        (
            "loss=lambda m, b: m(b[0].float()).mean()",
            "the proof computes in float64. Take dtypes from the parameters or the inputs",
        ),
        ("collate=lambda rows: 'none'", "a batch is a str, in which no tensor"),
        ("loader=spawns", "The loader's workers are new processes"),
        ("loader=asks", "loader(rank, ranks, batch_size) gets the rank"),
    ],
)
def test_preflight_of_a_workload_that_no_arm_can_train_says_what_to_do(try_out, changes, says):
    message, _ = try_out(f"def make(): return a_workload({changes})")
    assert says in message
    assert len(message.splitlines()) <= 8


def test_preflight_tells_five_lines_of_a_library_and_the_line_of_the_user(try_out):
    message, line = try_out(
        "def loss(model, batch):\n"
        "    raise NotImplementedError('line\\n' * 40)\n"
        "def make(): return a_workload(loss=loss)"
    )
    assert message.count("line\n") == 5
    assert line == "raise NotImplementedError('line\\n' * 40)"


def test_preflight_tells_the_error_of_a_worker_without_its_traceback(try_out):
    message, line = try_out(
        "class Rows:\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index):\n"
        "        raise ValueError('no such row')\n"
        "def loader(rank, ranks, size): return held.DataLoader(Rows(), size, num_workers=1)\n"
        "def make(): return a_workload(loader=loader)"
    )
    assert "In a loader's worker: ValueError: no such row" in message
    assert "Traceback" not in message
    assert line == "raise ValueError('no such row')"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (("import argparse\nparser = argparse.ArgumentParser()\n"
         "parser.add_argument('--hidden', required=True)\nparser.parse_args()"), "reads the command line"),
        ("import sys\nsys.exit(0)", "your file ends the process: sys.exit(0)."),
        ("import os\nos._exit(0)", "your file ends the process: os._exit(0)."),
        ("dist.init_process_group('gloo')", "your file joins a group itself"),
        ("nn.parallel.DistributedDataParallel(nn.Linear(1, 1))", "your file asks for a group"),
        ("def make(): return a_workload()\ntorch.set_num_threads(2)", "run with --threads 2"),
    ],
)  # fmt: skip
def test_file_that_acts_as_a_script_is_refused_with_its_line(try_out, code, says):
    message, line = try_out(code)
    assert says in message
    assert line == code.splitlines()[-1]


FORKS = """
import os
if not (child := os.fork()):
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""


@pytest.mark.parametrize("code", [FORKS, "import sys\nassert len(sys.argv) == 1\n"])
def test_file_may_end_its_own_processes_and_read_an_empty_command_line(try_out, code):
    before = os.getpid()
    assert isinstance(try_out(f"{code}def make(): return a_workload()"), OwnTask)
    assert os.getpid() == before


def test_preflight_changes_no_state_of_the_run(try_out):
    code = "made = []\ndef make():\n    made.append(nn.Linear(6, 1))\n    return a_workload(model=made[-1])"
    task = try_out(code)
    first, *_, tried = sys.modules["train"].made
    assert task.workload.model is first
    assert torch.equal(first.weight, tried.weight)
    assert all(p.grad is None for p in first.parameters())
