"""What a rank attests and sweeps is taken from the live objects, not from what was asked for."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from compare.worker.attest import _attest_optimizer  # noqa: E402 -- imports torch
from compare.worker.batches import Batches  # noqa: E402 -- same
from compare.worker.collectives import CALLS_REPEATED, sweep, sweep_sizes, time_repeated  # noqa: E402 -- same
from compare.worker.workload import build_model, optimizer_maker  # noqa: E402 -- same
from tests.unit.factories import a_config  # noqa: E402 -- after what it depends on


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_the_learning_rate_is_the_one_that_the_optimizer_holds(name):
    config = a_config(optimizer=name, learning_rate=0.5)
    optimizer = optimizer_maker(config)(build_model("mlp").parameters())
    assert _attest_optimizer(optimizer)["groups"][0]["lr"] == 0.5
    optimizer.param_groups[0]["lr"] = 0.125
    attested = _attest_optimizer(optimizer)
    assert attested["groups"][0]["lr"] == 0.125
    assert attested["class"].lower() == name
    assert "params" not in attested["groups"][0]
    assert json.loads(json.dumps(attested))


def test_a_batch_is_attested_by_its_buffers():
    images = torch.zeros((640, 784), dtype=torch.float64)
    batches = Batches(images, torch.zeros(640, dtype=torch.int64), (1, 2), a_config(batch_size_per_rank=32))
    inputs, _ = next(iter(batches))
    assert batches.attest() == {
        "samples": len(inputs),
        "dtype": "torch.float64",
        "shard": [1, 2],
        "training_samples": 640,
    }
    assert len(inputs) == 32


def test_a_sweep_has_the_sizes_of_all_arms_and_a_steps_own_unless_they_are_huge():
    alike = [1 << 10, 32 << 10, 1 << 20]
    assert sweep_sizes([40, 1000]) == sorted([*alike, 1000, 1040])
    assert sweep_sizes([1 << 20]) == alike
    assert sweep_sizes([80_000_000]) == alike


def test_every_call_of_a_sweep_is_timed_from_a_common_start():
    order = []
    times = time_repeated(lambda: order.append("call"), lambda: order.append("barrier"), torch.device("cpu"))
    assert len(times) == order.count("barrier") == 3
    assert order[:2] == ["call", "barrier"], "the first call is not timed"
    assert all(time >= 0 for time in times)


class _Group:
    device = torch.device("cpu")

    def __init__(self):
        self.reduced = []

    def barrier(self):
        pass

    def all_reduce_(self, tensor):
        self.reduced.append(tensor.numel() * tensor.element_size())


class _Replica:
    model = torch.nn.Linear(2, 2)

    def __init__(self, facts):
        self._facts = facts

    def attest(self):
        return self._facts


def test_a_strategy_that_goes_past_its_group_is_not_swept():
    group, told = _Group(), []
    assert sweep([814_120], _Replica({"transport": "shared memory"}), group, told.append) == []
    assert sweep([], _Replica({}), group, told.append) == []
    assert group.reduced == []
    swept = sweep([814_120], _Replica({}), group, told.append)
    assert [sweep.message_bytes for sweep in swept] == sorted(set(group.reduced))
    assert 814_120 in {sweep.message_bytes for sweep in swept}
    assert told == [CALLS_REPEATED] * len(swept), "the watchdog is told of every size"
