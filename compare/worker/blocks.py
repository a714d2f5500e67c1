"""Train an arm and its reference, which does not synchronise, in blocks of steps, and time each block."""

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
"""Maximum number of reference blocks in a training; they are spread over it, to cancel drift."""
REFERENCE_WARM_UP_STEPS = 10
"""Maximum number of steps that a reference takes before its first block."""
_REFERENCE_BLOCKS_OF_A_TURN = 4
"""Maximum number of reference blocks in a turn."""


# ---- the plan ----


class BlockPlan(NamedTuple):
    """A block that is still to be trained."""

    mode: Literal["training", "reference"]
    """Whether the arm trains in this block, or its reference."""
    steps: int
    """Number of all steps of the block, including the first ones, which are not timed."""
    phased: bool
    """Whether the phases of a step are timed one by one; the step time then leaves out this block."""


def plan_blocks(
    steps: int,
    order: random.Random,
    *,
    reference: bool,
    cycle: int = 1,
    most_references: int = REFERENCE_BLOCKS,
    phased: bool = True,
) -> list[BlockPlan]:
    """Return the blocks of a training in their order, some of them paired with a block of the reference.

    A reference block stands directly before or after a training block of the same length, so drift affects
    both equally.

    Args:
        steps: training steps of all blocks together, a multiple of ``cycle``.
        order: decides which block of a pair is first; its seed is the same on every rank.
        reference: whether there are reference blocks.
        cycle: a number of steps; every block is a multiple of it.
        most_references: the maximum number of reference blocks.
        phased: whether the middle training block and its reference block are timed phase by phase.
    """
    sizes = split_into_blocks(steps, cycle=cycle, fewest=2 if phased else 1)
    count = len(sizes)
    middle = count // 2 if phased and count > 1 else None
    most = most_references - (middle is not None)
    evenly_spaced = [i * (count - 1) // (most - 1) for i in range(most)] if count > most else range(count)
    paired = {middle, *evenly_spaced} if reference else set()
    plans = []
    for index, size in enumerate(sizes):
        pair = [BlockPlan("training", size, phased=index == middle)]
        if index in paired:
            pair.append(BlockPlan("reference", size, phased=index == middle))
            order.shuffle(pair)
        plans += pair
    return plans


def split_into_blocks(steps: int, *, cycle: int = 1, fewest: int = 2) -> list[int]:
    """Return the number of steps in each block, which is about ``BLOCK_STEPS``.

    ``steps`` is a multiple of ``cycle``, and so is each block. There are ``fewest`` blocks or more, but at
    most one for each cycle. Blocks differ by one cycle at most: a short last block would be the noisiest.
    """
    cycles = steps // cycle
    count = max(min(fewest, cycles), min(cycles, round(steps / BLOCK_STEPS)))
    size, longer = divmod(cycles, count) if count else (0, 0)
    return [cycle * (size + (i < longer)) for i in range(count)]


def untimed_steps(config: RunConfig, cycle: int) -> int:
    """Return how many training steps are taken before the first block.

    These are the warm-up steps, and a few more if the others would not be a multiple of ``cycle``.

    Raises:
        BackendError: the others are fewer than a cycle.
    """
    timed = config.total_steps - config.untimed_steps
    if timed < cycle:
        raise BackendError(
            f"This arm's communication repeats every {cycle} steps, but only {timed} steps are timed. "
            f"Use at least --steps {config.untimed_steps + cycle}."
        )
    return config.untimed_steps + timed % cycle


def settling_steps(steps: int, cycle: int) -> int:
    """Return how many steps at the beginning of a block are not timed.

    They are the first cycle, unless that is the whole block. The caches still hold the data of the other
    side, so the first step takes 15 to 20 % longer. A training without a reference has no such cost.
    """
    return cycle if steps > cycle else 0


# ---- the two sides ----


class Side(NamedTuple):
    """A training by one replica: that of an arm, of its reference, or of the copy in a proof."""

    replica: Replica
    batches: Iterator[Batch]
    loss: Loss
    before_step: BeforeStep | None = None

    def train(self, steps: int, on_phase: Callable[[str], None] = lambda _: None) -> None:
        """Take ``steps`` training steps, and call ``on_phase`` with the name of each phase that ended."""
        train(self.replica, self.batches, self.loss, steps, on_phase, before_step=self.before_step)


Sides: TypeAlias = dict[Mode, Side]


def make_side(replica: Replica, task: Task, batches: Iterator[Batch]) -> Side:
    """Return a side that trains a replica on ``batches`` with the loss and ``before_step`` of a task.

    A step of the user's own gets no ``before_step``, because it clips and schedules by itself.
    """
    return Side(replica, batches, task.loss, None if replica.takes_whole_step else task.before_step())


def make_reference(
    make_replica: type[Replica], task: Task, batches: Iterator[Batch], group: Group, steps: int
) -> Side:
    """Return a new reference, which trains without synchronisation, after its warm-up.

    It takes ``steps`` steps, but at most ``REFERENCE_WARM_UP_STEPS``. ``make_replica`` is the control's
    class. It trains in the arm's process, so background work of the arm's library slows it down as well.
    The random generators are left as they were.
    """
    with same_randomness(group.device):
        replica = make_replica(task.build_model(), task.make_optimizer, group, {})
        task.prepare(replica)
        side = make_side(replica, task, batches)
        side.train(min(steps, REFERENCE_WARM_UP_STEPS))
    read_clock(group.device)
    return side


# ---- the timed steps ----


class BlockTrainer:
    """The timed part of a rank's training, in blocks one after another or in turns with other arms.

    ``on_trained`` is called once, directly after the last step of the training. Turns may continue to train
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
        on_trained: Callable[[], None],
    ) -> None:
        self._job = job
        self._sides = sides
        self._group = group
        self._watchdog = watchdog
        self.step_seconds = step_seconds
        """Seconds of a training step, as last measured."""
        self._on_trained = on_trained
        self._cycle = sides["training"].replica.cycle
        self.steps_done = untimed_steps(job.config, self._cycle)
        """Number of training steps so far, including the warm-up."""
        self._order = random.Random(f"{job.config.seed}/{job.number}")
        self._references = "reference" in sides

    def train_blocks(self) -> Iterator[Block]:
        """Train all blocks to the end of the training, and yield each as soon as it is timed."""
        self.begin()
        yield from self._timed_blocks(
            plan_blocks(self._remaining_steps, self._order, reference=self._references, cycle=self._cycle)
        )

    def begin(self) -> None:
        """Wait for all ranks before the first block, unless their latest steps have synchronised them."""
        if self._references or not self._job.arm.traits.synchronises:
            self._wait_for_ranks(self.steps_done)

    def train_turn(self, turn: Turn) -> Iterator[Block]:
        """Train one turn, and yield each of its timed blocks, with the turn's number.

        The turn begins with untimed steps. In the first turn, one pair of blocks is timed phase by phase.
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
            most_references=_REFERENCE_BLOCKS_OF_A_TURN,
            phased=phased,
        )
        for block in self._timed_blocks(plans):
            yield msgspec.structs.replace(block, turn=turn.number)

    def finish(self) -> None:
        """Train to the end of the training, without timing these steps."""
        self._train_untimed(max(0, self._remaining_steps))
        if not self._job.arm.traits.synchronises:
            self._wait_for_ranks(1)

    @property
    def _remaining_steps(self) -> int:
        """Return the number of steps to the end of the training, which is negative after the end."""
        return self._job.config.total_steps - self.steps_done

    def _whole_cycles(self, steps: int) -> int:
        """Return a number of steps, rounded up to a multiple of the cycle."""
        return -(-steps // self._cycle) * self._cycle

    def _timed_blocks(self, plans: list[BlockPlan]) -> Iterator[Block]:
        """Train the planned blocks in their order, and yield each as soon as it is timed."""
        for plan in plans:
            if plan.mode == "training":
                if 0 < self._remaining_steps < plan.steps:
                    # The training would end inside this block, so its last steps come before, untimed.
                    self._train_untimed(self._remaining_steps)
                yield self.timed_block(plan)
                self._count_steps(plan.steps)
            else:
                with same_randomness(self._group.device):
                    yield self.timed_block(plan)
            if plan.mode == "reference" or not self._job.arm.traits.synchronises:
                self._wait_for_ranks(plan.steps)

    def _train_untimed(self, steps: int) -> None:
        """Train so many steps without timing them, and record progress in between."""
        while steps > 0:
            piece = min(steps, self._watchdog.steps_at_once(self.step_seconds))
            if self._remaining_steps > 0:
                piece = min(piece, self._remaining_steps)
            self._note(piece)
            self._sides["training"].train(piece)
            read_clock(self._group.device)
            self._count_steps(piece)
            steps -= piece

    def _count_steps(self, steps: int) -> None:
        self.steps_done += steps
        if self._remaining_steps == 0:
            self._on_trained()

    def _wait_for_ranks(self, steps: int) -> None:
        """Wait for all ranks after so many steps without synchronisation.

        The fastest rank may wait for the slowest as long as these steps take. Steps that synchronise need no
        barrier, and over Gloo a barrier would take one percent of a small model's training.
        """
        self._note(steps)
        self._group.barrier()

    def timed_block(self, plan: BlockPlan) -> Block:
        """Train one block, and return the times of all its steps but the first ``settling_steps``."""
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
        """Train so many steps; record progress in between if they take long."""
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
