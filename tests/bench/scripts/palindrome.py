"""Several ways of doing the same, measured in turns in one process: A B C C B A, in shuffled order."""

from __future__ import annotations

import gc
import json
import random
import time
from pathlib import Path

from tests.bench.machine import LoadMeter


def measure(arms, steps, palindromes, barrier=lambda: None, *, seed=0, settling=0):
    """Measure every arm twice a palindrome: what drifts on the machine falls on all alike.

    Args:
        arms: name -> what does so many steps; it may return nanoseconds that it measured itself.
        steps: name -> steps in a turn.
        palindromes: how many of them.
        barrier: called before every turn, outside the timed part.
        seed: of the order, the same on every rank and another in every launch.
        settling: steps before every turn that are not timed: the caches still hold what another arm left.

    Returns:
        One entry a palindrome: wall and CPU seconds a step of every arm, and the load meanwhile.
    """
    gc.disable()
    for name, work in arms.items():
        # Two turns: buffers are made in the first steps, and DDP makes its buckets anew after one.
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
        begun, begun_cpu = time.perf_counter_ns(), time.process_time_ns()
        itself = arms[name](steps[name])
        wall[name] += itself or time.perf_counter_ns() - begun
        cpu[name] += time.process_time_ns() - begun_cpu
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
