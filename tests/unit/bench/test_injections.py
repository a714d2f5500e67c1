"""Test that the injections of ``make test-long`` still fit the product.

The product has no hooks for them. Those tests take a quarter of an hour and are run by hand. So this
checks with every change that their injections have an effect.
"""

from __future__ import annotations

import importlib.util
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from backends.base import Replica
from backends.groups.torch_group import TorchGroup
from backends.strategies.averaging import AveragingReplica
from compare.worker import blocks as turns
from compare.worker import mnist, rank
from compare.worker.blocks import BlockTrainer, make_reference
from compare.worker.mnist import MnistTask
from tests.unit.factories import a_config

E2E = Path(__file__).resolve().parents[2] / "e2e"
GROUP = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"), barrier=lambda: None)
WATCHDOG = SimpleNamespace(note=lambda *_, **__: None, steps_at_once=lambda _: 1000)


def load(folder, monkeypatch):
    """Load the module as a rank does, but without its effects."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(E2E.parent)
    spec = importlib.util.spec_from_file_location("injection", E2E / folder / "sitecustomize.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def injected(monkeypatch):
    """Load the delays with a clock that advances a second a reading."""
    module = load("injected", monkeypatch)
    looks = count()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(looks)))
    module.looks = looks
    # monkeypatch restores what the module replaces.
    for owner, name in (
        *((turns.BlockTrainer, "timed_block"), (Replica, "sync"), (AveragingReplica, "sync")),
        *((mnist, "loss_function"), (rank, "make_reference"), (rank, "BlockTrainer")),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return module


def a_job(label="manual"):
    config = a_config(label, ranks=1, steps=244, warmup_steps=4, batch_size_per_rank=2, model="mlp:784-2-10")
    return SimpleNamespace(config=config, arm=config.arms[0], number=1)


def a_side(config):
    task = MnistTask(config, None, torch.zeros(640, 784), torch.zeros(640, dtype=torch.int64))
    return make_reference(Replica, task, iter(task.batches((0, 1))), GROUP, 1)


def is_delayed(injected, act):
    before = next(injected.looks)
    act()
    return next(injected.looks) - before > 1


@pytest.mark.parametrize("change", ["slow sync", "slow computing"])
def test_delay_is_on_in_every_other_block_or_phased_step(injected, monkeypatch, change):
    job, found = a_job(), {"training": [], "reference": []}
    place = {"slow sync": (AveragingReplica, "sync"), "slow computing": (mnist, "loss_function")}[change]
    monkeypatch.setattr(*place, lambda *_: torch.zeros((), requires_grad=True))
    injected._CHANGES[change](rank, job, SimpleNamespace(rank=0, world_size=1), 0.5)
    delayed = getattr(*place)

    class Watched(Replica):
        mode = "training"

        def sync(self):
            found[self.mode].append(is_delayed(injected, lambda: delayed(self, None)))

    sides = {mode: a_side(job.config) for mode in found}
    for mode, side in sides.items():
        side.replica.__class__ = type(mode, (Watched,), {"mode": mode})
    monkeypatch.setattr(mnist, "loss_function", torch.nn.functional.cross_entropy)
    trainer = BlockTrainer(job, sides, GROUP, WATCHDOG, step_seconds=0.001, on_trained=lambda: None)
    blocks = list(trainer.train_blocks())

    for mode, steps in found.items():
        taken, alone = iter(steps), 0
        for block in (block for block in blocks if block.mode == mode):
            _settling, *timed = [next(taken) for _ in range(block.steps + 1)]
            if block.phases:
                assert timed == [step % 2 == 1 for step in range(block.steps)]
            else:
                assert set(timed) == {alone % 2 == 1}
                alone += 1
        assert alone >= 4
        assert next(taken, None) is None


def test_no_reference_leaves_the_arm_alone(injected, monkeypatch):
    seen = []
    monkeypatch.setattr(rank, "BlockTrainer", lambda job, sides, *_, **__: seen.append(list(sides)))
    injected._CHANGES["no reference"](rank, None, None, 0.0)
    assert rank.make_reference(None, None, None, None, 1) is None
    rank.BlockTrainer(None, {"training": 1, "reference": None}, None, None, step_seconds=1.0)
    assert seen == [["training"]]


@pytest.mark.parametrize(("cause", "seconds"), [("latency", 0.002), ("bandwidth", 600 / 60e6)])
def test_slowed_all_reduce_takes_longer(monkeypatch, cause, seconds):
    slowed, seen = load("slowed", monkeypatch), []
    monkeypatch.setattr(TorchGroup, "all_reduce_", lambda _, tensor: seen.append(tensor))
    monkeypatch.setattr(slowed, "time", SimpleNamespace(sleep=seen.append))
    module, change = slowed._CAUSES[cause]
    change(sys.modules[module])
    tensor = torch.zeros(150)
    TorchGroup.all_reduce_(None, tensor)
    assert seen[0] == pytest.approx(seconds)
    assert seen[1] is tensor


def test_straggler_is_the_second_rank_under_every_strategy(monkeypatch):
    slowed, seen = load("slowed", monkeypatch), []
    monkeypatch.setattr(Replica, "learn", lambda _, batch: batch)
    monkeypatch.setattr(slowed, "_STRAGGLING_SECONDS", 0.0)
    monkeypatch.setattr(slowed, "time", SimpleNamespace(perf_counter=lambda: seen.append("look") or 0.0))
    module, change = slowed._CAUSES["straggler"]
    change(sys.modules[module])
    for shard in ((0, 2), (1, 2)):
        assert AveragingReplica.learn(SimpleNamespace(shard=shard), "batch") == "batch"
        assert bool(seen) is (shard[0] == 1)


def test_background_competition_starts_when_a_rank_joins(monkeypatch):
    slowed, started = load("slowed", monkeypatch), []
    monkeypatch.setattr(TorchGroup, "join", classmethod(lambda _, *arguments: arguments))
    thread = SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=lambda: started.append(True)))
    monkeypatch.setattr(slowed, "threading", thread)
    module, change = slowed._CAUSES["background"]
    change(sys.modules[module])
    assert TorchGroup.join("placement", "device") == ("placement", "device")
    assert started == [True]


def test_slowed_arm_is_found_by_the_label_in_its_job(monkeypatch, tmp_path):
    job = a_job("manual:mode=per_parameter")
    file = tmp_path / "job.json"
    file.write_bytes(msgspec.json.encode({"arm": job.arm}))
    assert load("slowed", monkeypatch)._label(str(file)) == job.arm.label
