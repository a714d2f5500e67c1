"""Time and the phases of a step, CPU load and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from backends.strategies import pipeline
from compare.system import load
from compare.worker import meters, observed, rank, turn_pipes, watchdog
from compare.worker.meters import (
    CPUMeter,
    PhaseClock,
    peak_device_memory_bytes,
    peak_memory_bytes,
    read_memory,
    reset_peak_memory,
    time_work,
)

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def _spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_time_is_right_where_a_workload_has_replaced_the_clock(monkeypatch):
    for name in ("perf_counter_ns", "process_time_ns", "monotonic", "time"):
        monkeypatch.setattr(time, name, lambda: 0)
    wall_ns, cpu_ns = time_work(lambda: _spin(0.05), CPU)
    assert wall_ns > 45_000_000
    # A busy machine gives less than the whole core, and no machine gives more to one thread.
    assert 1_000_000 < cpu_ns <= wall_ns + 1_000_000


@pytest.mark.parametrize("module", [meters, observed, pipeline, rank, turn_pipes, watchdog])
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
    monkeypatch.setattr(meters, "perf_counter_ns", lambda: next(written_down))
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


# ---- CPUs and memory ----


TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def test_cpu_meter_counts_this_process():
    meter = CPUMeter()
    _spin(0.3)
    use, own = meter.read()
    assert use.wall_ns >= 300_000_000
    assert 0 < own <= use.wall_ns + TICK_NS
    # The kernel counts whole ticks, and each CPU on its own.
    ticks = 2 * TICK_NS * use.cpus
    assert own - ticks <= use.busy_ns <= use.cpus * use.wall_ns + ticks
    assert 0 <= use.stolen_ns <= use.busy_ns


def test_cpu_meter_counts_other_processes():
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        meter = CPUMeter()
        time.sleep(0.5)
        use, own = meter.read()
        other.kill()
    assert own < 50_000_000
    # It spins all the time; on a crowded machine another process does in its place.
    assert use.busy_ns > 200_000_000


PROC_STAT = """\
cpu  900 900 900 900 900 900 900 900 0 0
cpu0 {0} 2 3 {3} 50 5 6 {1} 7 8
cpu1 {2} 2 3 {3} 50 5 6 0 0 0
cpu10 {2} 0 0 {3} 0 0 0 0 0 0
intr 1 2 3
"""


def measured(monkeypatch, allowed, before, after, ticks=200):
    """Return the use between two states of /proc/stat, so many ticks apart."""
    shown, times = iter([before, after]), iter([0, ticks * TICK_NS])
    monkeypatch.setattr(load.Path, "read_text", lambda path: next(shown))
    monkeypatch.setattr(load, "perf_counter_ns", lambda: next(times))
    monkeypatch.setattr(meters, "boot_id", str)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    use, _ = CPUMeter().read()
    return use


@pytest.mark.parametrize("allowed", [{0}, {0, 1}, {10}])
def test_cpu_meter_takes_allowed_cpus_as_busy_while_not_idle(monkeypatch, allowed):
    """The samples of ticks may be short: here they miss a tenth of the time."""
    before, after = PROC_STAT.format(100, 10, 30, 1000), PROC_STAT.format(200, 50, 170, 1040)
    use = measured(monkeypatch, allowed, before, after)
    assert use.cpus == len(allowed)
    assert use.busy_ns == 160 * TICK_NS * len(allowed)
    assert use.stolen_ns == (40 * TICK_NS if 0 in allowed else 0)


def test_cpu_meter_tells_processes_from_interrupts(monkeypatch):
    """Interrupts took 7 of the sampled ticks more, those of packets 20."""
    before = "cpu0 100 0 50 1000 0 5 6 10 0 0\n"
    after = "cpu0 130 0 60 1100 0 12 26 10 0 0\n"
    use = measured(monkeypatch, {0}, before, after)
    assert use.busy_ns == 100 * TICK_NS
    assert use.processes_ns == 40 * TICK_NS


def test_cpu_meter_takes_the_samples_where_idle_time_is_not_counted(monkeypatch):
    before, after = PROC_STAT.format(100, 10, 30, 0), PROC_STAT.format(120, 20, 30, 0)
    assert measured(monkeypatch, {0}, before, after).busy_ns == 30 * TICK_NS


def test_peak_memory_is_not_that_of_the_parent():
    """And not that of the larger one that started it."""
    held = bytearray(300 << 20)
    held[:: 4 << 10] = b"1" * len(held[:: 4 << 10])
    script = "from compare.worker.meters import peak_memory_bytes; print(peak_memory_bytes())"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert peak_memory_bytes() > len(held)
    assert int(child.stdout) < peak_memory_bytes()


def test_memory_on_a_cpu_has_no_gpu():
    found = read_memory(CPU)
    assert (found.gpu_peak_bytes, found.gpu_left_bytes) == (0, None)
    assert found.peak_bytes > 0
    assert peak_device_memory_bytes(CPU) is None


def test_memory_counts_the_larger_peak_before_and_after_a_reset(monkeypatch):
    """What is left is always what is left now."""
    known, resets = SimpleNamespace(host=300, on_gpu=70, left=50), []
    monkeypatch.setattr(meters, "peak_memory_bytes", lambda: known.host)
    monkeypatch.setattr(meters.Path, "write_text", lambda path, text: resets.append(str(path)))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: known.on_gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (known.left, 100))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    before = read_memory(GPU)
    assert (before.peak_bytes, before.gpu_peak_bytes, before.gpu_left_bytes) == (300, 70, 50)
    assert reset_peak_memory(GPU)
    assert resets == [GPU, "/proc/self/clear_refs"]
    known.host, known.on_gpu, known.left = 200, 90, 40
    after = read_memory(GPU, before)
    assert (after.peak_bytes, after.gpu_peak_bytes, after.gpu_left_bytes) == (300, 90, 40)
