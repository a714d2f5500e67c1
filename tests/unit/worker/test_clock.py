"""Blocks and their order, the clock of the phases, collectives alone, and the meter of the CPUs."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import Replica
from compare.worker import clock as measure
from compare.worker import meters
from compare.worker.blocks import BLOCK_STEPS, REFERENCE_BLOCKS, plan_blocks, split_into_blocks
from compare.worker.clock import PhaseClock, time_together
from compare.worker.collectives import time_alone
from compare.worker.loop import train
from compare.worker.meters import CPUMeter, peak_memory_bytes

CPU = torch.device("cpu")
STEPS = st.integers(1, 20_000)
SEEDS = st.integers(0, 2**32)

untimed = settings(deadline=None)


def planned(steps, seed=0, *, reference=True):
    return plan_blocks(steps, random.Random(seed), reference=reference)


def of(mode, plans):
    return [plan for plan in plans if plan.mode == mode]


# ---- blocks ----


@untimed
@given(cycles=st.integers(1, 2_000), cycle=st.integers(1, 100))
def test_blocks_are_whole_multiples_of_a_cycle(cycles, cycle):
    sizes = split_into_blocks(cycles * cycle, cycle=cycle)
    assert sum(sizes) == cycles * cycle
    assert all(size > 0 and size % cycle == 0 for size in sizes)
    assert max(sizes) - min(sizes) <= cycle
    assert len(sizes) >= min(2, cycles)
    plans = plan_blocks(cycles * cycle, random.Random(0), reference=True, cycle=cycle)
    assert all(plan.steps % cycle == 0 for plan in plans)


@untimed
@given(STEPS)
def test_blocks_are_as_equal_as_can_be_and_none_is_lost(steps):
    sizes = split_into_blocks(steps)
    assert sum(sizes) == steps
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@untimed
@given(st.integers(2 * BLOCK_STEPS, 20_000))
def test_a_block_has_about_as_many_steps_as_it_should(steps):
    # Rounding to whole blocks moves a length most where there are fewest blocks: 37 and 38, or three of 25.
    assert all(0.8 * BLOCK_STEPS <= size <= 1.27 * BLOCK_STEPS for size in split_into_blocks(steps))


@pytest.mark.parametrize(
    ("steps", "sizes"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (30, [15, 15]), (100, [34, 33, 33])]
)
def test_there_are_two_blocks_wherever_there_are_two_steps(steps, sizes):
    # One of them is timed phase by phase, which leaves at least one to the headline.
    assert split_into_blocks(steps) == sizes


@untimed
@given(STEPS, SEEDS, st.booleans())
def test_the_training_steps_of_a_plan_are_those_that_were_asked_for(steps, seed, reference):
    assert sum(plan.steps for plan in of("training", planned(steps, seed, reference=reference))) == steps


@untimed
@given(STEPS, SEEDS)
def test_a_reference_block_stands_beside_a_training_block_of_the_same_length(steps, seed):
    plans = planned(steps, seed)
    # Where a plan can be cut, so that before the cut stand lone training blocks and pairs of equals.
    cuts = {0}
    for index, (plan, following) in enumerate(zip(plans, [*plans[1:], None], strict=True)):
        if index in cuts and plan.mode == "training":
            cuts.add(index + 1)
        if index in cuts and following and plan.mode != following.mode and plan[1:] == following[1:]:
            cuts.add(index + 2)
    assert len(plans) in cuts


@untimed
@given(STEPS, SEEDS)
def test_references_are_bounded_and_reach_from_the_beginning_to_the_end(steps, seed):
    plans = planned(steps, seed)
    references = [index for index, plan in enumerate(plans) if plan.mode == "reference"]
    assert len(references) <= REFERENCE_BLOCKS
    assert min(references) <= 1
    assert max(references) >= len(plans) - 2


@untimed
@given(st.integers(1, (REFERENCE_BLOCKS - 1) * BLOCK_STEPS), SEEDS)
def test_in_a_short_training_every_block_has_its_reference(steps, seed):
    plans = planned(steps, seed)
    assert len(of("reference", plans)) == len(of("training", plans))


@untimed
@given(STEPS, SEEDS)
def test_exactly_one_pair_is_timed_phase_by_phase(steps, seed):
    phased = [plan for plan in planned(steps, seed) if plan.phased]
    assert sorted(plan.mode for plan in phased) == (["reference", "training"] if steps > 1 else [])
    assert len({plan.steps for plan in phased}) <= 1


@untimed
@given(STEPS, SEEDS, st.booleans())
def test_something_is_left_for_the_headline(steps, seed, reference):
    plans = planned(steps, seed, reference=reference)
    for mode in {plan.mode for plan in plans}:
        assert any(not plan.phased for plan in of(mode, plans))


@untimed
@given(STEPS, SEEDS)
def test_without_a_reference_the_plan_is_the_training_alone(steps, seed):
    alone = planned(steps, seed, reference=False)
    assert alone == of("training", planned(steps, seed))
    assert sum(plan.phased for plan in alone) == (steps > 1)


@untimed
@given(STEPS, SEEDS)
def test_every_rank_plans_the_same(steps, seed):
    assert planned(steps, f"{seed}/7") == planned(steps, f"{seed}/7")


def test_another_launch_takes_the_blocks_in_another_order():
    assert len({tuple(planned(400, f"0/{number}")) for number in range(20)}) > 15


def test_the_reference_comes_first_as_often_as_second():
    first = [plans[0].mode == "reference" for plans in (planned(60, f"0/{number}") for number in range(1000))]
    assert 430 < sum(first) < 570  # 4.4 standard deviations


def test_a_plan_written_out():
    """A run from last year, repeated with its seed, takes its blocks in the same order."""
    spelled = [f"{plan.mode[0]}{plan.steps}{'*' * plan.phased}" for plan in planned(100, "0/2")]
    assert spelled == ["t34", "r34", "r33*", "t33*", "t33", "r33"]


# ---- timing a block ----


def test_the_wait_for_the_other_ranks_is_no_part_of_a_block():
    timing = time_together(lambda: time.sleep(0.002), lambda: time.sleep(0.2), CPU)
    assert 0.002 <= timing.wall_ns / 1e9 < 0.1
    assert timing.cpu_ns < 50_000_000


def test_the_cpu_time_of_a_block_is_that_of_its_work():
    timing = time_together(lambda: _spin(0.05), lambda: _spin(0.05), CPU)
    # A busy machine gives less than the whole core; nobody gives more to a single thread.
    assert 0 < timing.cpu_ns <= timing.wall_ns + 1_000_000


# ---- phases ----


class Ticking:
    """A clock that shows what a test has written down."""

    def __init__(self, monkeypatch, *nanoseconds):
        self.shown = iter(nanoseconds)
        monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter_ns=lambda: next(self.shown)))


def test_phases_are_timed_from_the_end_of_one_to_the_end_of_the_next(monkeypatch):
    Ticking(monkeypatch, 100, 110, 130, 135, 140, 151, 171, 177, 182, 999)
    clock = PhaseClock(CPU)
    for phase in ("begin", *("forward", "backward", "sync", "step") * 2):
        clock(phase)
    assert clock.read() == {"forward": [10, 11], "backward": [20, 20], "sync": [5, 6], "step": [5, 5]}


def test_a_phase_that_comes_twice_in_a_step_is_summed_up(monkeypatch):
    Ticking(monkeypatch, 0, 10, 30, 41, 62, 65, 70, 999)
    clock = PhaseClock(CPU)
    for phase in ("begin", "forward", "backward", "forward", "backward", "sync", "step"):
        clock(phase)
    assert clock.read() == {"forward": [10 + 11], "backward": [20 + 21], "sync": [3], "step": [5]}


@pytest.mark.parametrize("told", [[], ["begin"], ["begin", "forward"]])
def test_where_no_step_has_ended_there_are_no_phases(told):
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
def test_no_nanosecond_is_lost(steps):
    """Whatever phases there are: over all of them, a step is as long as it was."""
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


def test_the_loop_tells_every_phase_of_every_step():
    told = []
    parameter = torch.nn.Parameter(torch.zeros(3, 10))
    replica = SimpleNamespace(
        passes_per_step=1,
        forward=lambda inputs: inputs @ parameter,
        backward=lambda loss: loss.backward(),
        sync=lambda: None,
        step=lambda: None,
    )
    replica.learn = partial(Replica.learn, replica)
    batches = iter([(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))] * 5)
    train(replica, batches, 2, told.append)
    assert told == ["forward", "backward", "sync", "step"] * 2


def test_a_slow_phase_is_the_one_that_was_slow():
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


# ---- collectives alone ----


@pytest.mark.parametrize(
    ("nbytes", "calls"), [(0, 10), (1, 10), (10_000_000, 10), (40_000_000, 2), (100_000_000, 1), (10**9, 1)]
)
def test_collectives_follow_each_other_the_fewer_the_larger_they_are(nbytes, calls):
    events = []
    samples = time_alone(lambda: events.append("call"), lambda: events.append("barrier"), CPU, nbytes)
    # Once unmeasured, then every sample from a common start.
    assert events == ["call"] * calls + (["barrier"] + ["call"] * calls) * len(samples)
    assert len(samples) >= 5


def test_what_is_told_is_the_time_of_one_call(monkeypatch):
    now = [0]

    def call():
        now[0] += 250

    def barrier():
        now[0] += 100_000

    monkeypatch.setattr(
        measure, "time", SimpleNamespace(perf_counter_ns=lambda: now[0], process_time_ns=lambda: 0)
    )
    assert set(time_alone(call, barrier, CPU, 8)) == {250}


# ---- CPUs ----


def _spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def test_a_spinning_process_is_part_of_what_the_cpus_did():
    meter = CPUMeter()
    _spin(0.3)
    use, own = meter.read()
    assert use.wall_ns >= 300_000_000
    assert 0 < own <= use.wall_ns + TICK_NS
    # The kernel counts whole ticks, and each CPU on its own.
    ticks = 2 * TICK_NS * use.cpus
    assert own - ticks <= use.busy_ns <= use.cpus * use.wall_ns + ticks
    assert 0 <= use.stolen_ns <= use.busy_ns


def test_others_are_seen_too():
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        meter = CPUMeter()
        time.sleep(0.5)
        use, own = meter.read()
        other.kill()
    assert own < 50_000_000
    # It spins all the time, and on a crowded machine somebody else does in its place.
    assert use.busy_ns > 200_000_000


PROC_STAT = """\
cpu  900 900 900 900 900 900 900 900 0 0
cpu0 {0} 2 3 1000 50 5 6 {1} 7 8
cpu1 {2} 2 3 1000 50 5 6 0 0 0
cpu10 {2} 0 0 1000 0 0 0 0 0 0
intr 1 2 3
"""


@pytest.mark.parametrize(("allowed", "busy"), [({0}, 100 + 40), ({0, 1}, 100 + 40 + 70), ({10}, 70)])
def test_only_cpus_that_the_ranks_may_use_count(monkeypatch, allowed, busy):
    """User, nice, system, interrupts and what other guests stole; not idle, nor waiting for a disk."""
    shown = iter([PROC_STAT.format(100, 10, 30), PROC_STAT.format(200, 50, 100)])
    monkeypatch.setattr(meters.Path, "read_text", lambda path: next(shown))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    use, _ = CPUMeter().read()
    assert use.cpus == len(allowed)
    assert use.busy_ns == busy * TICK_NS
    assert use.stolen_ns == (40 * TICK_NS if 0 in allowed else 0)


def test_the_peak_is_this_processs_own():
    """And not that of the larger one that started it."""
    held = bytearray(300 << 20)
    held[:: 4 << 10] = b"1" * len(held[:: 4 << 10])
    script = "from compare.worker.meters import peak_memory_bytes; print(peak_memory_bytes())"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert peak_memory_bytes() > len(held)
    assert int(child.stdout) < peak_memory_bytes()
