"""The timed part of a launch: the arm and its reference, block by block, in turns."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from compare.measure import PhaseClock, plan_blocks, time_block
from compare.results import Block, Mode
from compare.train import train
from compare.workload import build_model, optimizer_maker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from backends.base import Group, Replica
    from compare.config import RunConfig
    from compare.guard import Guard
    from compare.job import Job
    from compare.measure import BlockPlan
    from compare.train import Batch

SLACK = 3.0
"""A block may take so many times what the warm-up promised, and the stall on top."""
_FIRST_STEPS = 10
_SETTLING_STEPS = 1
"""First steps of a block, which train but are not timed: the caches still hold what the other side left, and
the first step takes 15 to 20 % longer, which nobody who trains without being measured ever pays."""


class Side(NamedTuple):
    """One of the two that are measured in turns: the arm itself, and its reference."""

    replica: Replica
    batches: Iterator[Batch]


Sides: TypeAlias = dict[Mode, Side]


def make_reference(
    make_replica: type[Replica], config: RunConfig, batches: Iterator[Batch], group: Group
) -> Side:
    """Make a pristine replica that trains on the same batches without any synchronisation.

    It stands beside the arm in the same process, so what the arm's library does in the background
    slows it down as well.
    """
    with _untouched_randomness(group.device):
        torch.manual_seed(config.seed)
        model = build_model(config.model).to(group.device)
        replica = make_replica(model, optimizer_maker(config), group, {})
        replica.accumulate(config.accumulate)
        side = Side(replica, batches)
        train(*side, min(_FIRST_STEPS, config.untimed_steps))
    return side


def _untouched_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the generators as they are: what the reference drops out must not change what the arm does."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def take_turns(job: Job, sides: Sides, group: Group, guard: Guard, *, step_seconds: float) -> Iterator[Block]:
    """Train the steps that count, block by block; a step is expected to take ``step_seconds``."""
    config = job.config
    done = config.untimed_steps
    order = random.Random(f"{config.seed}/{job.number}")
    for plan in plan_blocks(config.total_steps - done, order, reference="reference" in sides):
        guard.note("train", done, expected_seconds=SLACK * plan.steps * step_seconds)
        if plan.mode == "training":
            yield _timed_block(plan, sides["training"], group)
            done += plan.steps
        else:
            with _untouched_randomness(group.device):
                yield _timed_block(plan, sides["reference"], group)


def _timed_block(plan: BlockPlan, side: Side, group: Group) -> Block:
    settling = min(_SETTLING_STEPS, plan.steps - 1)
    steps = plan.steps - settling
    clock = PhaseClock(group.device)

    def phased() -> None:
        clock("begin")
        train(*side, steps, clock)

    train(*side, settling)
    work = phased if plan.phased else partial(train, *side, steps)
    timing = time_block(work, group.barrier, group.device)
    return Block(
        mode=plan.mode, steps=steps, wall_ns=timing.wall_ns, cpu_ns=timing.cpu_ns, phases=clock.read()
    )
