"""The timed part of a launch: the arm and its reference, block by block, in turns."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from backends.base import BackendError
from compare.schema.results import Block, Mode
from compare.worker.clock import PhaseClock, plan_blocks, read_clock, time_work
from compare.worker.loop import train
from compare.worker.workload import build_model, optimizer_maker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from backends.base import Group, Replica
    from compare.schema.config import RunConfig
    from compare.schema.job import Job
    from compare.worker.clock import BlockPlan
    from compare.worker.loop import Batch
    from compare.worker.watchdog import Watchdog

FIRST_STEPS = 10
"""At most so many steps a reference takes before it is timed."""


class Side(NamedTuple):
    """One of the two that are measured in turns: the arm itself, and its reference."""

    replica: Replica
    batches: Iterator[Batch]


Sides: TypeAlias = dict[Mode, Side]


def make_reference(
    make_replica: type[Replica], config: RunConfig, batches: Iterator[Batch], group: Group, steps: int
) -> Side:
    """Make a pristine replica that trains on the same batches without any synchronisation; take ``steps``.

    It stands beside the arm in the same process, so what the arm's library does in the background
    slows it down as well.
    """
    with _untouched_randomness(group.device):
        torch.manual_seed(config.seed)
        model = build_model(config.model).to(group.device)
        replica = make_replica(model, optimizer_maker(config), group, {})
        replica.accumulate(config.accumulate)
        side = Side(replica, batches)
        train(*side, steps)
    read_clock(group.device)
    return side


def _untouched_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the generators as they are: what the reference drops out must not change what the arm does."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def settling_steps(steps: int, cycle: int) -> int:
    """Return how many steps of a block train but are not timed: its first cycle, unless that is all of it.

    The caches still hold data of the other side, so the first step takes 15 to 20 % longer. No training
    that is not measured pays for that.
    """
    return cycle if steps > cycle else 0


def untimed_steps(config: RunConfig, cycle: int) -> int:
    """Return how many steps train before the clock starts, so that whole cycles are left.

    Raises:
        BackendError: no whole cycle is left.
    """
    left = config.total_steps - config.untimed_steps
    if left < cycle:
        raise BackendError(
            f"this arm repeats itself every {cycle} steps, and only {left} would be timed: train more --steps"
        )
    return config.untimed_steps + left % cycle


def take_turns(
    job: Job, sides: Sides, group: Group, watchdog: Watchdog, *, step_seconds: float
) -> Iterator[Block]:
    """Train the steps that count, block by block; a step is expected to take ``step_seconds``."""
    return _Turns(job, sides, group, watchdog, step_seconds).take()


class _Turns:
    def __init__(self, job: Job, sides: Sides, group: Group, watchdog: Watchdog, step_seconds: float) -> None:
        self._job = job
        self._sides = sides
        self._group = group
        self._watchdog = watchdog
        self._step_seconds = step_seconds
        self._cycle = sides["training"].replica.cycle
        self._done = untimed_steps(job.config, self._cycle)

    def take(self) -> Iterator[Block]:
        config = self._job.config
        order = random.Random(f"{config.seed}/{self._job.number}")
        if "reference" in self._sides or not self._job.arm.synchronises:
            self._meet(self._done)  # the reference, or the control, has warmed up apart
        plans = plan_blocks(
            config.total_steps - self._done,
            order,
            reference="reference" in self._sides,
            cycle=self._cycle,
        )
        for plan in plans:
            if plan.mode == "training":
                yield self._timed_block(plan)
                self._done += plan.steps
            else:
                with _untouched_randomness(self._group.device):
                    yield self._timed_block(plan)
            if plan.mode == "reference" or not self._job.arm.synchronises:
                self._meet(plan.steps)

    def _meet(self, steps: int) -> None:
        """Wait for all ranks after steps in which none waited for another, so that the next begin together.

        The quickest may wait for the slowest as long as such steps take. After steps that synchronise, the
        ranks are together as it is; over Gloo a barrier would take a hundredth of a small model's training.
        """
        self._note(steps)
        self._group.barrier()

    def _timed_block(self, plan: BlockPlan) -> Block:
        side, device = self._sides[plan.mode], self._group.device
        settling = settling_steps(plan.steps, self._cycle)
        steps = plan.steps - settling
        clock = PhaseClock(device) if plan.phased else None
        self._note()
        train(*side, settling)
        read_clock(device)  # what a GPU has still to do is not done
        # A note, and the code that comes with it, which is in no cache then, make the next step or two of the
        # MLP a tenth longer: another one only where all of the block's steps are too many for a single one.
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
        """Take steps; where they take long, say in between that they go on."""
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
