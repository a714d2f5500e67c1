"""Test what is read of the load of CPUs."""

import os
import subprocess
import sys
import time

from compare.system.load import Counts, children_ns, read_counts

SECOND = 1_000_000_000
SPIN = "import time\nwhile time.process_time() < 60: pass"


def test_a_childs_cpu_time_counts_while_it_runs_and_after_its_end():
    before, deadline = children_ns(), time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        try:
            while (running := children_ns() - before) < SECOND / 5 and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            child.kill()
    assert running >= SECOND / 5
    assert children_ns() - before >= running - SECOND / 50


def test_busy_time_is_what_is_not_idle():
    assert Counts(wall=100, idle=150, sampled=40).busy(2) == 50


def test_busy_time_is_sampled_where_idle_time_is_not_counted():
    assert Counts(wall=100, idle=0, sampled=40).busy(2) == 40


def test_counts_grow_by_what_this_process_does():
    cpus = os.sched_getaffinity(0)
    before = read_counts(cpus)
    while time.process_time_ns() < before.own + SECOND / 5:
        pass
    after = read_counts(cpus)
    assert after.own - before.own >= SECOND / 5
    assert after.wall - before.wall >= SECOND / 5 / len(cpus)
    assert after.sampled > before.sampled
