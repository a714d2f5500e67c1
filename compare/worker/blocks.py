"""Train and time blocks of the arm and its reference."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import torch

from backends.base import BackendError, Group, Replica
from compare.schema.config import RunConfig
from compare.schema.job import Job
from compare.schema.results import Block, Mode
from compare.worker.clock import PhaseClock, read_clock, time_work
from compare.worker.loop import Batch, train
from compare.worker.watchdog import Watchdog
from compare.worker.workload import build_model, optimizer_maker

BLOCK_STEPS = 30
"""Steps in a block."""
REFERENCE_BLOCKS = 14
"""Maximum number of reference blocks; they cancel drift."""
FIRST_STEPS = 10
"""Maximum number of steps that a reference takes before it is timed."""


# ---- the plan ----


class BlockPlan(NamedTuple):
    """A block to come."""

    mode: Literal["training", "reference"]
    steps: int
    """All its steps, with the first ones that are not timed."""
    phased: bool
    """Its phases are timed, which excludes it from the step time."""


def plan_blocks(steps: int, order: random.Random, *, reference: bool, cycle: int = 1) -> list[BlockPlan]:
    """Split steps into blocks, and add blocks of the reference.

    A reference block stands directly before or after a training block of the same length. So drift affects
    both equally. The middle pair is timed phase by phase. ``steps`` is a multiple of ``cycle``, and so is
    every block. ``order`` decides which of a pair is first; it has the same seed on every rank.
    """
    sizes = split_into_blocks(steps, cycle=cycle)
    middle = len(sizes) // 2 if len(sizes) > 1 else None
    referred = _spread(len(sizes), REFERENCE_BLOCKS - 1) | {middle} if reference else set()
    plans = []
    for index, size in enumerate(sizes):
        pair = [BlockPlan("training", size, phased=index == middle)]
        if index in referred:
            pair.append(BlockPlan("reference", size, phased=index == middle))
            order.shuffle(pair)
        plans += pair
    return plans


def split_into_blocks(steps: int, *, cycle: int = 1) -> list[int]:
    """Split steps, a multiple of ``cycle``, into two or more blocks.

    Blocks of about ``BLOCK_STEPS`` differ by one cycle at most. A short last block would be the noisiest.
    """
    cycles = steps // cycle
    count = max(min(2, cycles), min(cycles, round(steps / BLOCK_STEPS)))
    size, longer = divmod(cycles, count) if count else (0, 0)
    return [cycle * (size + (i < longer)) for i in range(count)]


def _spread(count: int, most: int) -> set[int | None]:
    """Choose at most ``most`` of ``count`` indices, evenly over all of them."""
    return set(range(count)) if count <= most else {i * (count - 1) // (most - 1) for i in range(most)}


def untimed_steps(config: RunConfig, cycle: int) -> int:
    """Return how many steps train before the clock starts.

    The steps that are left are whole cycles.

    Raises:
        BackendError: no whole cycle is left.
    """
    left = config.total_steps - config.untimed_steps
    if left < cycle:
        raise BackendError(
            f"This arm has a cycle of {cycle} steps, but only {left} steps are timed: train more --steps"
        )
    return config.untimed_steps + left % cycle


def settling_steps(steps: int, cycle: int) -> int:
    """Return how many first steps of a block are not timed.

    They are the first cycle, unless that is all of the block. The caches still hold data of the other side,
    so the first step takes 15 to 20 % longer. Training without measuring never pays for that.
    """
    return cycle if steps > cycle else 0


# ---- the two sides ----


class Side(NamedTuple):
    """The arm or its reference, which are measured alternately."""

    replica: Replica
    batches: Iterator[Batch]


Sides: TypeAlias = dict[Mode, Side]


def make_reference(
    make_replica: type[Replica], config: RunConfig, batches: Iterator[Batch], group: Group, steps: int
) -> Side:
    """Make a replica that trains on the same batches without synchronisation.

    It is in the same process, so background work of the arm's library slows it down as well. It takes
    ``steps`` first steps.
    """
    with _same_randomness(group.device):
        torch.manual_seed(config.seed)
        model = build_model(config.model).to(group.device)
        replica = make_replica(model, optimizer_maker(config), group, {})
        replica.accumulate(config.accumulate)
        side = Side(replica, batches)
        train(*side, steps)
    read_clock(group.device)
    return side


def _same_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Restore the generators: dropout in the reference must not change the arm's."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


# ---- the timed steps ----


def train_blocks(
    job: Job, sides: Sides, group: Group, watchdog: Watchdog, *, step_seconds: float
) -> Iterator[Block]:
    """Train and time all blocks; a step is expected to take ``step_seconds``."""
    return BlockTrainer(job, sides, group, watchdog, step_seconds).blocks()


class BlockTrainer:
    """Trains the blocks of one launch."""

    def __init__(self, job: Job, sides: Sides, group: Group, watchdog: Watchdog, step_seconds: float) -> None:
        self._job = job
        self._sides = sides
        self._group = group
        self._watchdog = watchdog
        self._step_seconds = step_seconds
        self._cycle = sides["training"].replica.cycle
        self._done = untimed_steps(job.config, self._cycle)

    def blocks(self) -> Iterator[Block]:
        """Train block after block, and yield each."""
        config = self._job.config
        order = random.Random(f"{config.seed}/{self._job.number}")
        if "reference" in self._sides or not self._job.arm.synchronises:
            self._wait_for_ranks(self._done)  # the warm-up of the reference or the control
        plans = plan_blocks(
            config.total_steps - self._done,
            order,
            reference="reference" in self._sides,
            cycle=self._cycle,
        )
        for plan in plans:
            if plan.mode == "training":
                yield self.timed_block(plan)
                self._done += plan.steps
            else:
                with _same_randomness(self._group.device):
                    yield self.timed_block(plan)
            if plan.mode == "reference" or not self._job.arm.synchronises:
                self._wait_for_ranks(plan.steps)

    def _wait_for_ranks(self, steps: int) -> None:
        """Wait for all ranks after steps without synchronisation.

        The fastest rank may wait for the slowest as long as these steps take. Steps that synchronise need no
        barrier. Over Gloo it would take one percent of a small model's training.
        """
        self._note(steps)
        self._group.barrier()

    def timed_block(self, plan: BlockPlan) -> Block:
        """Train one block, and time all but its first steps."""
        side, device = self._sides[plan.mode], self._group.device
        settling = settling_steps(plan.steps, self._cycle)
        steps = plan.steps - settling
        clock = PhaseClock(device) if plan.phased else None
        self._note()
        train(*side, settling)
        read_clock(device)  # a GPU may still be busy with earlier steps
        # A record slows the next step or two of the MLP by a tenth. So a block of quick steps has only one.
        if self._watchdog.steps_at_once(self._step_seconds) < plan.steps:
            self._note()
        timing = time_work(partial(self._train, side, steps, clock), device)
        if plan.mode == "training":
            self._step_seconds = timing.wall_ns / 1e9 / steps
        return Block(
            mode=plan.mode,
            steps=steps,
            wall_ns=timing.wall_ns,
            cpu_ns=timing.cpu_ns,
            phases=clock.read() if clock else {},
        )

    def _train(self, side: Side, steps: int, clock: PhaseClock | None) -> None:
        """Train steps; record progress in between if they take long."""
        if clock:
            clock("begin")
        at_once = self._watchdog.steps_at_once(self._step_seconds)
        for done in range(0, steps, at_once):
            if done:
                read_clock(self._group.device)
                self._note()
            train(*side, min(steps - done, at_once), *([clock] if clock else []))

    def _note(self, steps: int = 1) -> None:
        self._watchdog.note("train", self._done, expected_seconds=steps * self._step_seconds)
