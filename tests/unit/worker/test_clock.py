"""The clock, and the phases of a step."""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.strategies import pipeline
from compare.worker import clock as clock_module
from compare.worker import first_step, meters, rank, turn_pipes, watchdog
from compare.worker.clock import PhaseClock, time_together

CPU = torch.device("cpu")


untimed = settings(deadline=None)


def _spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_time_together_excludes_the_barrier():
    timing = time_together(lambda: time.sleep(0.002), lambda: time.sleep(0.2), CPU)
    assert 0.002 <= timing.wall_ns / 1e9 < 0.1
    assert timing.cpu_ns < 50_000_000


def test_time_is_right_where_a_workload_has_replaced_the_clock(monkeypatch):
    for name in ("perf_counter_ns", "process_time_ns", "monotonic", "time"):
        monkeypatch.setattr(time, name, lambda: 0)
    timing = time_together(lambda: _spin(0.02), lambda: None, CPU)
    assert timing.wall_ns > 15_000_000
    assert timing.cpu_ns > 1_000_000


@pytest.mark.parametrize("module", [clock_module, first_step, meters, pipeline, rank, turn_pipes, watchdog])
def test_module_that_measures_a_workload_has_bound_the_clock(module):
    assert getattr(module, "time", None) is not time


def test_time_together_counts_the_cpu_time_of_the_work():
    timing = time_together(lambda: _spin(0.05), lambda: _spin(0.05), CPU)
    # A busy machine gives less than the whole core, and no machine gives more to one thread.
    assert 0 < timing.cpu_ns <= timing.wall_ns + 1_000_000


# ---- phases ----


STEP = ("forward", "backward", "sync", "step")


@pytest.mark.parametrize(
    ("shown", "told", "phases"),
    [
        ((100, 110, 130, 135, 140, 151, 171, 177, 182), STEP * 2, ([10, 11], [20, 20], [5, 6], [5, 5])),
        ((0, 10, 30, 41, 62, 65, 70), STEP[:2] + STEP, ([10 + 11], [20 + 21], [3], [5])),
    ],
    ids=["two steps", "a repeated phase"],
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


@untimed
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["forward", "backward", "sync"]), st.integers(0, 10**9))),
        min_size=1,
        max_size=5,
    )
)
def test_phase_clock_phases_add_up_to_the_step(steps):
    """Phases of any number and order keep the length of a step."""
    now = 0
    clock = PhaseClock(CPU)
    clock._marks.append(("begin", now))
    for step in steps:
        # Every step has every phase, or the table of them would not be one.
        for phase, nanoseconds in [("forward", 1), ("backward", 1), ("sync", 1), *step, ("step", 7)]:
            now += nanoseconds
            clock._marks.append((phase, now))
    phases = clock.read()
    assert set(phases) == {"forward", "backward", "sync", "step"}
    assert [sum(phase[i] for phase in phases.values()) for i in range(len(steps))] == [
        3 + 7 + sum(nanoseconds for _, nanoseconds in step) for step in steps
    ]


def test_phase_clock_finds_the_slow_phase():
    clock = PhaseClock(CPU)
    for _ in range(3):
        clock("begin")
        clock("forward")
        time.sleep(0.02)
        clock("sync")
        clock("step")
    phases = clock.read()
    assert min(phases["sync"]) >= 20_000_000
    # The median: one interruption of the test must not pass for a slow phase.
    assert statistics.median(phases["forward"]) < 10_000_000
