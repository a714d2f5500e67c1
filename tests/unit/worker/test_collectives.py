"""Collectives alone, and the sweep over sizes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from compare.worker import clock as clock_module
from compare.worker.collectives import (
    CALLS_REPEATED,
    calls_in_a_row,
    sweep,
    sweep_sizes,
    time_alone,
    time_collectives,
    time_repeated,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("nbytes", "calls"), [(0, 10), (1, 10), (10_000_000, 10), (40_000_000, 2), (100_000_000, 1), (10**9, 1)]
)
def test_time_alone_makes_fewer_calls_of_larger_messages(nbytes, calls):
    events = []
    samples = time_alone(lambda: events.append("call"), lambda: events.append("barrier"), CPU, nbytes)
    # Once unmeasured, then every sample from a common start.
    assert events == ["call"] * calls + (["barrier"] + ["call"] * calls) * len(samples)
    assert len(samples) >= 5


def test_time_alone_returns_the_time_of_one_call(monkeypatch):
    now = [0]

    def call():
        now[0] += 250

    def barrier():
        now[0] += 100_000

    monkeypatch.setattr(clock_module, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(clock_module, "process_time_ns", lambda: 0)
    assert set(time_alone(call, barrier, CPU, 8)) == {250}


@pytest.mark.parametrize("nbytes", [800_000, 80_000_000])
def test_time_collectives_records_before_every_sample(nbytes):
    told = []
    collectives = SimpleNamespace(message_bytes=[nbytes], run=lambda: told.append("call"))
    time_collectives(collectives, a_group([]), told.append)
    calls = calls_in_a_row(nbytes)
    assert told == [calls, *["call"] * calls] * (len(told) // (calls + 1))


def test_sweep_sizes_are_the_fixed_ones_and_small_own_ones():
    alike = [1 << 10, 32 << 10, 1 << 20]
    assert sweep_sizes([40, 1000]) == sorted([*alike, 1000, 1040])
    assert sweep_sizes([1 << 20]) == alike
    assert sweep_sizes([80_000_000]) == alike


def test_time_repeated_times_from_a_common_start():
    order = []
    times = time_repeated(lambda: order.append("call"), lambda: order.append("barrier"), CPU)
    assert len(times) == order.count("barrier") == 3
    assert order[:2] == ["call", "barrier"], "the first call is not timed"
    assert all(time >= 0 for time in times)


def a_group(reduced):
    """A group that notes how many bytes it sums."""
    return SimpleNamespace(
        device=CPU, barrier=lambda: None, all_reduce_=lambda tensor: reduced.append(tensor.nbytes)
    )


def a_replica(**facts):
    return SimpleNamespace(model=torch.nn.Linear(2, 2), attest=lambda: facts)


def test_sweep_of_a_strategy_with_own_transport_is_empty():
    reduced, told = [], []
    group = a_group(reduced)
    assert sweep([814_120], a_replica(transport="shared memory"), group, told.append) == []
    assert sweep([], a_replica(), group, told.append) == []
    assert reduced == []
    swept = sweep([814_120], a_replica(), group, told.append)
    assert [sweep.message_bytes for sweep in swept] == sorted(set(reduced))
    assert 814_120 in {sweep.message_bytes for sweep in swept}
    assert told == [CALLS_REPEATED] * len(swept), "the watchdog is told of every size"
