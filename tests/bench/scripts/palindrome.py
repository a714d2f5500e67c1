"""Measure arms in one process as a palindrome: A B B A."""

from __future__ import annotations

import gc
import json
import random
import time
from pathlib import Path

from tests.bench.machine import LoadMeter


def measure(arms, steps, palindromes, barrier=lambda: None, *, seed=0, settling=0):
    """Measure every arm twice a palindrome, so that drift cancels out.

    Args:
        arms: name -> a function that does so many steps. It may return nanoseconds that it measured itself.
        steps: name -> steps in a turn.
        palindromes: how many palindromes.
        barrier: called before every turn, outside the timed part.
        seed: the seed of the order: the same on every rank, another in every launch.
        settling: untimed steps before every turn, because the caches hold another arm's data.

    Returns:
        One entry a palindrome: every arm's wall and CPU seconds a step, and the load.
    """
    gc.disable()
    for name, work in arms.items():
        # Two turns: the first steps make buffers, and DDP rebuilds its buckets after one step.
        work(steps[name])
        work(steps[name])
    shuffle = random.Random(seed)
    return [_palindrome(arms, steps, barrier, shuffle, settling) for _ in range(palindromes)]


def _palindrome(arms, steps, barrier, shuffle, settling):
    gc.collect()
    names = shuffle.sample(list(arms), len(arms))
    wall, cpu = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    barrier()
    meter = LoadMeter()
    for name in [*names, *reversed(names)]:
        barrier()
        if settling:
            arms[name](settling)
        started, started_cpu = time.perf_counter_ns(), time.process_time_ns()
        itself = arms[name](steps[name])
        wall[name] += itself or time.perf_counter_ns() - started
        cpu[name] += time.process_time_ns() - started_cpu
    load = meter.read()
    return {
        "step_seconds": {name: ns / 1e9 / (2 * steps[name]) for name, ns in wall.items()},
        "step_cpu_seconds": {name: ns / 1e9 / (2 * steps[name]) for name, ns in cpu.items()},
        "busy_seconds": load.busy_seconds,
        "own_seconds": load.own_seconds,
        "wall_seconds": load.wall_seconds,
    }


def write(folder, rank, palindromes):
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(palindromes))
