"""The timed part of a launch: the arm and its reference, block by block, in turns."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from compare.guard import SLACK
from compare.measure import PhaseClock, plan_blocks, time_block
from compare.results import Block, Mode
from compare.train import train
from compare.workload import build_model, optimizer_maker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from backends.base import Group, Replica
    from compare.config import RunConfig
    from compare.guard import Guard
    from compare.job import Job
    from compare.measure import BlockPlan
    from compare.train import Batch

FIRST_STEPS = 10
"""At most so many steps a reference takes before it is timed."""
_SETTLING_STEPS = 1
"""First steps of a block, which train but are not timed: the caches still hold what the other side left, and
the first step takes 15 to 20 % longer, which nobody who trains without being measured ever pays."""


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
    return side


def _untouched_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the generators as they are: what the reference drops out must not change what the arm does."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def take_turns(job: Job, sides: Sides, group: Group, guard: Guard, *, step_seconds: float) -> Iterator[Block]:
    """Train the steps that count, block by block; a step is expected to take ``step_seconds``."""
    config = job.config
    done = config.untimed_steps
    order = random.Random(f"{config.seed}/{job.number}")
    at_once = guard.steps_at_once(step_seconds)

    def note(steps: int = 1) -> None:
        guard.note("train", done, may_take_seconds=SLACK * steps * step_seconds)

    for plan in plan_blocks(config.total_steps - done, order, reference="reference" in sides):
        if plan.mode == "training":
            yield _timed_block(plan, sides["training"], group, note, at_once)
            done += plan.steps
        else:
            with _untouched_randomness(group.device):
                yield _timed_block(plan, sides["reference"], group, note, at_once)
        if plan.mode == "reference" or not job.arm.synchronises:
            # Whoever trains apart from the others waits for the slowest of them, which may take a block.
            note(plan.steps)
            group.barrier()


def _timed_block(plan: BlockPlan, side: Side, group: Group, note: Callable[[], None], at_once: int) -> Block:
    """Time one block. Where it is longer than ``at_once`` steps, ``note`` says in between that it goes on."""
    settling = min(_SETTLING_STEPS, plan.steps - 1)
    steps = plan.steps - settling
    clock = PhaseClock(group.device)
    listeners = (clock,) if plan.phased else ()

    def work() -> None:
        if plan.phased:
            clock("begin")
        train(*side, min(steps, at_once), *listeners)
        for done in range(at_once, steps, at_once):
            note()
            train(*side, min(steps - done, at_once), *listeners)

    note()
    train(*side, settling)
    timing = time_block(work, group.barrier, group.device)
    return Block(
        mode=plan.mode, steps=steps, wall_ns=timing.wall_ns, cpu_ns=timing.cpu_ns, phases=clock.read()
    )
