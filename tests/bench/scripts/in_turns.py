"""Measure what takes turns in one process a rank, as a palindrome: A B B A.

Usage: python -m tests.bench.scripts.in_turns SCRIPT MNIST OUTPUT SEED ARGUMENT ...
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import sys
import time
from functools import partial
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

import backends
from backends.launchers import read_placement
from compare.schema.arms import parse_arm
from compare.schema.config import RunConfig
from compare.schema.launch_files import LaunchFiles
from compare.worker.blocks import BlockTrainer, Side
from compare.worker.mnist import PixelBatches, as_tensors, build_model, classify, optimizer_maker
from compare.worker.watchdog import Watchdog
from tests.bench.in_turns import IN_STEP
from tests.bench.machine import LoadMeter
from tests.bench.scripts import published

CPU = torch.device("cpu")
_TIMEOUT_SECONDS = 60
_STALL_SECONDS = 30


# ---- turns -----------------------------------------------------------------------------------------------


def measure(arms, steps, palindromes, barrier, seed, *, settling=0):
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
    return [_palindrome(arms, steps, barrier, shuffle, settling) for _ in range(int(palindromes))]


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


# ---- groups and replicas, without the product's launch ---------------------------------------------------


def join(label):
    """Join the group of an arm; its launcher started this process."""
    arm = parse_arm(label)
    make_group, _ = backends.load(arm.backend, arm.options)
    placement = read_placement(backends.BACKENDS[arm.backend].default_runtime.launcher, os.environ)
    return make_group.join(placement, CPU, arm.options, _TIMEOUT_SECONDS)


def side_of(label, group, model, tensors, **settings):
    """Return a new replica of an arm with its batches and its loss."""
    arm = parse_arm(label)
    config = RunConfig(arms=(arm,), model=model, ranks=group.world_size, **settings)
    _, make_replica = backends.load(arm.backend, arm.options)
    torch.manual_seed(0)
    replica = make_replica(build_model(model), optimizer_maker(config), group, arm.options)
    return Side(replica, iter(PixelBatches(*tensors, replica.shard, config)), classify)


# ---- the scripts: each returns its rank and its palindromes ----------------------------------------------


def loop(mnist, _out, seed, model, batch_size, steps, published_steps, palindromes):
    """Measure the published loop, the product's, and its floor."""
    alone = SimpleNamespace(rank=0, world_size=1)
    raw, batch_size = published.training_set(mnist), int(batch_size)
    resident = side_of("none", alone, model, as_tensors(*raw, CPU), batch_size_per_rank=batch_size)
    # Both use one model and one buffer, because memory layout moved their ratio by some percent. The floor
    # reads the buffer as the last turn left it. Its labels belong to another batch, which takes as long.
    floor = resident._replace(batches=repeat(next(resident.batches)))
    torch.manual_seed(0)
    plain = build_model(model)
    optimizer = torch.optim.SGD(plain.parameters(), RunConfig(arms=()).learning_rate)
    arms = {
        "published": partial(published.train, plain, optimizer, published.endless(*raw, batch_size)),
        "resident": resident.train,
        "floor": floor.train,
    }
    counts = {"published": int(published_steps), "resident": int(steps), "floor": int(steps)}
    return 0, measure(arms, counts, palindromes, lambda: None, seed)


def averaging(mnist, _out, seed, model, steps, palindromes, *labels):
    """Measure several arms of one process group."""
    group = join(labels[0])
    tensors = as_tensors(*published.training_set(mnist), CPU)
    arms = {}
    # The order of creation decides the memory layout, so it is shuffled.
    for label in random.Random(f"{seed}, made").sample(labels, len(labels)):
        side = side_of("manual:mode=shared_memory" if label == IN_STEP else label, group, model, tensors)
        if label == IN_STEP:
            side.replica.reducer.reduce = side.replica.reducer.shared._barrier.wait
        arms[label] = side.train
    counts = dict.fromkeys(arms, int(steps))
    taken = measure(arms, counts, palindromes, group.barrier, seed, settling=1)
    group.leave()
    return group.rank, taken


def floor(_mnist, _out, seed, megabytes, calls, palindromes):
    """Measure an all-reduce through shared memory, and one rank's plain addition."""
    from backends.shared_memory.sum import SharedSum

    group = join("manual:mode=shared_memory")
    parameter = nn.Parameter(torch.zeros(int(float(megabytes) * 1e6 / 4)))
    shared = SharedSum([parameter], group)
    gradient = torch.rand_like(parameter)
    other, result = torch.rand_like(gradient), torch.zeros_like(gradient)

    def all_reduce(times):
        for _ in range(times):
            shared.reduce([gradient])

    def add(times):
        # The other ranks wait in the barrier, so this rank alone uses the memory.
        for _ in range(times if group.rank == 0 else 0):
            torch.add(gradient.detach(), other, out=result)

    arms = {"all_reduce": all_reduce, "add": add}
    taken = measure(arms, dict.fromkeys(arms, int(calls)), palindromes, group.barrier, seed)
    group.leave()
    return group.rank, taken


def measuring(mnist, out, seed, label, model, steps, palindromes):
    """Measure the training loop with and without the product's measuring."""
    group = join(label)
    tensors = as_tensors(*published.training_set(mnist), CPU)
    training, reference = (side_of(arm, group, model, tensors) for arm in (label, "none"))
    watchdog = Watchdog(LaunchFiles(Path(out)), group.placement.rank, _STALL_SECONDS)
    watchdog.start(limit_seconds=0.0)

    def turns(steps, **sides):
        """Train block by block, as a rank does: clock, progress records, watchdog."""
        arm = parse_arm(label)
        config = RunConfig(arms=(arm,), ranks=group.world_size, steps=steps + 1, warmup_steps=0)
        job = SimpleNamespace(config=config, arm=arm, number=int(seed))
        sides = {"training": training, **sides}
        trainer = BlockTrainer(job, sides, group, watchdog, step_seconds=0.001, on_trained=lambda: None)
        return list(trainer.train_blocks())

    def reported(steps):
        """Take turns with a reference; the product reports the training's time only."""
        blocks = turns(steps, reference=reference)
        timed = [block for block in blocks if block.mode == "training" and not block.phases]
        return sum(block.wall_ns for block in timed) / sum(block.steps for block in timed) * steps

    def whole(steps):
        turns(steps)  # it returns nothing, so that the caller times all of it

    # "again" does the same as "bare": their difference is noise.
    arms = {"bare": training.train, "again": training.train, "reported": reported, "whole": whole}
    taken = measure(arms, dict.fromkeys(arms, int(steps)), palindromes, group.barrier, seed, settling=1)
    faulthandler.cancel_dump_traceback_later()
    group.leave()
    return group.rank, taken


def main(script, mnist, out, *arguments):
    torch.set_num_threads(1)
    scripts = {function.__name__: function for function in (loop, averaging, floor, measuring)}
    rank, taken = scripts[script](mnist, out, *arguments)
    Path(out, f"rank-{rank}.json").write_text(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
