"""Train and time blocks of the arm and its reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from backends.base import BackendError, Batch, Group, Loss, Replica
from compare.schema.config import RunConfig
from compare.schema.job import Job
from compare.schema.results import Block, Mode
from compare.schema.turns import LEAST_STEPS, Turn
from compare.worker.loop import BeforeStep, train
from compare.worker.meters import PhaseClock, read_clock, time_work
from compare.worker.randomness import same_randomness
from compare.worker.task import Task
from compare.worker.watchdog import Watchdog

BLOCK_STEPS = 30
"""Usual number of steps in a block."""
REFERENCE_BLOCKS = 14
"""Maximum number of reference blocks; they cancel drift."""
FIRST_STEPS = 10
"""Maximum number of steps that a reference takes before it is timed."""
_REFERENCES_OF_A_TURN = 4
"""Maximum number of reference blocks in a turn."""


# ---- the plan ----


class BlockPlan(NamedTuple):
    """A block that is still to be trained."""

    mode: Literal["training", "reference"]
    steps: int
    """All steps of the block, including the first ones, which are not timed."""
    phased: bool
    """Whether its phases are timed one by one, which excludes the block from the step time."""


def plan_blocks(
    steps: int,
    order: random.Random,
    *,
    reference: bool,
    cycle: int = 1,
    references: int = REFERENCE_BLOCKS,
    phased: bool = True,
) -> list[BlockPlan]:
    """Split steps into training blocks, and add blocks of the reference.

    A reference block stands directly before or after a training block of the same length, so drift affects
    both equally. With ``phased``, the middle training block and its reference block are timed phase by phase.
    ``steps`` is a multiple of ``cycle``, and so is every block. ``order`` decides which of a pair is first,
    with the same seed on every rank. ``references`` is the maximum number of reference blocks.
    """
    sizes = split_into_blocks(steps, cycle=cycle, fewest=2 if phased else 1)
    middle = len(sizes) // 2 if phased and len(sizes) > 1 else None
    referred = _spread(len(sizes), references - (middle is not None)) | {middle} if reference else set()
    plans = []
    for index, size in enumerate(sizes):
        pair = [BlockPlan("training", size, phased=index == middle)]
        if index in referred:
            pair.append(BlockPlan("reference", size, phased=index == middle))
            order.shuffle(pair)
        plans += pair
    return plans


def split_into_blocks(steps: int, *, cycle: int = 1, fewest: int = 2) -> list[int]:
    """Return the steps of each block: about ``BLOCK_STEPS`` of them, in ``fewest`` or more blocks.

    ``steps`` is a multiple of ``cycle``, and so is each block. There are fewer blocks only if the cycles do
    not suffice. Blocks differ by one cycle at most, because a short last block would be the noisiest.
    """
    cycles = steps // cycle
    count = max(min(fewest, cycles), min(cycles, round(steps / BLOCK_STEPS)))
    size, longer = divmod(cycles, count) if count else (0, 0)
    return [cycle * (size + (i < longer)) for i in range(count)]


def _spread(count: int, most: int) -> set[int | None]:
    """Choose at most ``most`` of the indices below ``count``, evenly spread."""
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
            f"This arm repeats itself in a cycle of {cycle} steps, but only {left} steps are timed. "
            f"Use at least --steps {config.untimed_steps + cycle}."
        )
    return config.untimed_steps + left % cycle


def settling_steps(steps: int, cycle: int) -> int:
    """Return how many first steps of a block are not timed.

    They are the first cycle, unless that is the whole block. The caches still hold data of the other side, so
    the first step takes 15 to 20 % longer. Training that is not measured has only one side, and no such cost.
    """
    return cycle if steps > cycle else 0


# ---- the two sides ----


class Side(NamedTuple):
    """One of the two sides that are measured alternately: the arm or its reference."""

    replica: Replica
    batches: Iterator[Batch]
    loss: Loss
    before_step: BeforeStep | None = None

    def train(self, steps: int, on_phase: Callable[[str], None] = lambda _: None) -> None:
        """Take ``steps`` training steps; ``on_phase`` is called at the end of each phase."""
        train(self.replica, self.batches, self.loss, steps, on_phase, before_step=self.before_step)


Sides: TypeAlias = dict[Mode, Side]


def make_side(replica: Replica, task: Task, batches: Iterator[Batch]) -> Side:
    """Return a side: a replica with its batches and with the loss and ``before_step`` of a task.

    A step of the user's own gets no ``before_step``, because it clips and schedules by itself.
    """
    return Side(replica, batches, task.loss, None if replica.takes_whole_step else task.before_step())


def make_reference(
    make_replica: type[Replica], task: Task, batches: Iterator[Batch], group: Group, steps: int
) -> Side:
    """Return a side that trains without synchronisation, and that has taken ``steps`` steps already.

    It is in the arm's process, so background work of the arm's library slows it down as well. It leaves the
    random generators as they were.
    """
    with same_randomness(group.device):
        replica = make_replica(task.build_model(), task.make_optimizer, group, {})
        task.prepare(replica)
        side = make_side(replica, task, batches)
        side.train(steps)
    read_clock(group.device)
    return side


# ---- the timed steps ----


class BlockTrainer:
    """A trainer of the blocks of one launch, one after another or in turns.

    ``trained`` is called once, directly after the last step of the training. Turns may continue to train
    after that, for timing only.
    """

    def __init__(
        self,
        job: Job,
        sides: Sides,
        group: Group,
        watchdog: Watchdog,
        *,
        step_seconds: float,
        trained: Callable[[], None],
    ) -> None:
        self._job = job
        self._sides = sides
        self._group = group
        self._watchdog = watchdog
        self.step_seconds = step_seconds
        """Time of a step, as it was last measured."""
        self._trained = trained
        self._cycle = sides["training"].replica.cycle
        self.steps_done = untimed_steps(job.config, self._cycle)
        """Training steps so far, including the warm-up."""
        self._order = random.Random(f"{job.config.seed}/{job.number}")
        self._references = "reference" in sides

    def blocks(self) -> Iterator[Block]:
        """Train to the end of the training, and yield each block as soon as it is timed."""
        self.begin()
        yield from self._timed_blocks(
            plan_blocks(self._left, self._order, reference=self._references, cycle=self._cycle)
        )

    def begin(self) -> None:
        """Wait for all ranks, unless their latest steps have synchronised them."""
        if self._references or not self._job.arm.traits.synchronises:
            self._wait_for_ranks(self.steps_done)

    def turn(self, turn: Turn) -> Iterator[Block]:
        """Train one turn, and yield each of its timed blocks.

        Its first steps are not timed. The first turn has a pair of blocks that is timed phase by phase.
        """
        self._train_untimed(self._whole_cycles(turn.untimed_steps))
        if not self._job.arm.traits.synchronises:
            self._wait_for_ranks(turn.untimed_steps)
        phased = turn.number == 1
        blocks = 2 if phased else 1
        plans = plan_blocks(
            self._whole_cycles(max(turn.timed_steps, blocks * (LEAST_STEPS + self._cycle))),
            self._order,
            reference=self._references,
            cycle=self._cycle,
            references=_REFERENCES_OF_A_TURN,
            phased=phased,
        )
        for block in self._timed_blocks(plans):
            yield msgspec.structs.replace(block, turn=turn.number)

    def finish(self) -> None:
        """Train the remaining steps of the training, without timing them."""
        self._train_untimed(max(0, self._left))
        if not self._job.arm.traits.synchronises:
            self._wait_for_ranks(1)

    @property
    def _left(self) -> int:
        """Steps to the end of the training; negative after it."""
        return self._job.config.total_steps - self.steps_done

    def _whole_cycles(self, steps: int) -> int:
        return -(-steps // self._cycle) * self._cycle

    def _timed_blocks(self, plans: list[BlockPlan]) -> Iterator[Block]:
        for plan in plans:
            if plan.mode == "training":
                if 0 < self._left < plan.steps:
                    # The training would end inside this block, so its last steps come before, untimed.
                    self._train_untimed(self._left)
                yield self.timed_block(plan)
                self._count(plan.steps)
            else:
                with same_randomness(self._group.device):
                    yield self.timed_block(plan)
            if plan.mode == "reference" or not self._job.arm.traits.synchronises:
                self._wait_for_ranks(plan.steps)

    def _train_untimed(self, steps: int) -> None:
        """Train steps without timing them, and record progress in between."""
        while steps > 0:
            piece = min(steps, self._watchdog.steps_at_once(self.step_seconds))
            if self._left > 0:
                piece = min(piece, self._left)
            self._note(piece)
            self._sides["training"].train(piece)
            read_clock(self._group.device)
            self._count(piece)
            steps -= piece

    def _count(self, steps: int) -> None:
        self.steps_done += steps
        if self._left == 0:
            self._trained()

    def _wait_for_ranks(self, steps: int) -> None:
        """Wait for all ranks after steps without synchronisation.

        The fastest rank may wait for the slowest as long as these steps take. Steps that synchronise need no
        barrier, and over Gloo a barrier would take one percent of a small model's training.
        """
        self._note(steps)
        self._group.barrier()

    def timed_block(self, plan: BlockPlan) -> Block:
        """Train one block, and return the times of all but its first steps."""
        side, device = self._sides[plan.mode], self._group.device
        settling = settling_steps(plan.steps, self._cycle)
        steps = plan.steps - settling
        clock = PhaseClock(device) if plan.phased else None
        self._note()
        side.train(settling)
        read_clock(device)  # a GPU may still be busy with earlier steps
        # A record slows the next step or two of the MLP by a tenth. So a block of quick steps has only one.
        if self._watchdog.steps_at_once(self.step_seconds) < plan.steps:
            self._note()
        wall_ns, cpu_ns = time_work(partial(self._train, side, steps, clock), device)
        if plan.mode == "training":
            self.step_seconds = wall_ns / 1e9 / steps
        return Block(
            mode=plan.mode,
            steps=steps,
            wall_ns=wall_ns,
            cpu_ns=cpu_ns,
            phases=clock.read() if clock else {},
        )

    def _train(self, side: Side, steps: int, clock: PhaseClock | None) -> None:
        """Train steps; record progress in between if they take long."""
        if clock:
            clock("begin")
        at_once = self._watchdog.steps_at_once(self.step_seconds)
        for done in range(0, steps, at_once):
            if done:
                read_clock(self._group.device)
                self._note()
            side.train(min(steps - done, at_once), *([clock] if clock else []))

    def _note(self, steps: int = 1) -> None:
        self._watchdog.note("train", self.steps_done, expected_seconds=steps * self.step_seconds)
