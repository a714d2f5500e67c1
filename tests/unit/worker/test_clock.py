"""The clock, and the phases of a step."""

from __future__ import annotations

import time

import pytest
import torch

from backends.strategies import pipeline
from compare.worker import clock as clock_module
from compare.worker import meters, observed, rank, turn_pipes, watchdog
from compare.worker.clock import PhaseClock, time_work

CPU = torch.device("cpu")


def _spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_time_is_right_where_a_workload_has_replaced_the_clock(monkeypatch):
    for name in ("perf_counter_ns", "process_time_ns", "monotonic", "time"):
        monkeypatch.setattr(time, name, lambda: 0)
    timing = time_work(lambda: _spin(0.05), CPU)
    assert timing.wall_ns > 45_000_000
    # A busy machine gives less than the whole core, and no machine gives more to one thread.
    assert 1_000_000 < timing.cpu_ns <= timing.wall_ns + 1_000_000


@pytest.mark.parametrize("module", [clock_module, meters, observed, pipeline, rank, turn_pipes, watchdog])
def test_module_that_measures_a_workload_has_bound_the_clock(module):
    assert getattr(module, "time", None) is not time


# ---- phases ----


STEP = ("forward", "backward", "sync", "step")


@pytest.mark.parametrize(
    ("shown", "told", "phases"),
    [
        ((100, 110, 130, 135, 140, 151, 171, 177, 182), STEP * 2, ([10, 11], [20, 20], [5, 6], [5, 5])),
        (
            (0, 10, 30, 41, 62, 65, 70, 72, 76, 83, 91),
            (*STEP[:2], *STEP, "sync", "backward", "forward", "step"),
            ([10 + 11, 7], [20 + 21, 4], [3, 2], [5, 8]),
        ),
    ],
    ids=["two steps", "a repeated phase, and another order"],
)
def test_phase_clock_times_from_end_to_end_and_adds_up(monkeypatch, shown, told, phases):
    written_down = iter([*shown, 999])
    monkeypatch.setattr(clock_module, "perf_counter_ns", lambda: next(written_down))
    clock = PhaseClock(CPU)
    for phase in ("begin", *told):
        clock(phase)
    assert clock.read() == dict(zip(STEP, phases, strict=True))


@pytest.mark.parametrize("told", [[], ["begin"], ["begin", "forward"]])
def test_phase_clock_without_a_whole_step_is_empty(told):
    clock = PhaseClock(CPU)
    for phase in told:
        clock(phase)
    assert clock.read() == {}
