"""Blocks: their plan, and their training with plain replicas in one process."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.base import BackendError, Replica
from compare.schema.turns import LEAST_STEPS, Turn
from compare.worker import meters
from compare.worker.blocks import (
    BLOCK_STEPS,
    REFERENCE_BLOCKS,
    BlockTrainer,
    Side,
    make_reference,
    plan_blocks,
    split_into_blocks,
    untimed_steps,
)
from compare.worker.mnist import MnistTask, classify
from compare.worker.rank import _warm_up
from compare.worker.watchdog import Watchdog
from tests.unit.factories import a_config

GROUP = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"), barrier=lambda: None)
STEPS = st.integers(1, 20_000)
SEEDS = st.integers(0, 2**32)
untimed = settings(deadline=None)


# ---- the plan ----


def planned(steps, seed=0, *, reference=True):
    return plan_blocks(steps, random.Random(seed), reference=reference)


def of(mode, plans):
    return [plan for plan in plans if plan.mode == mode]


@untimed
@given(cycles=st.integers(1, 2_000), cycle=st.integers(1, 100))
def test_split_into_blocks_gives_multiples_of_the_cycle(cycles, cycle):
    sizes = split_into_blocks(cycles * cycle, cycle=cycle)
    assert sum(sizes) == cycles * cycle
    assert all(size > 0 and size % cycle == 0 for size in sizes)
    assert max(sizes) - min(sizes) <= cycle
    assert len(sizes) >= min(2, cycles)
    plans = plan_blocks(cycles * cycle, random.Random(0), reference=True, cycle=cycle)
    assert all(plan.steps % cycle == 0 for plan in plans)


@untimed
@given(st.integers(2 * BLOCK_STEPS, 20_000))
def test_split_into_blocks_has_about_the_right_length(steps):
    # Rounding to whole blocks moves a length most where there are fewest blocks: 37 and 38, or three of 25.
    assert all(0.8 * BLOCK_STEPS <= size <= 1.27 * BLOCK_STEPS for size in split_into_blocks(steps))


@pytest.mark.parametrize(
    ("steps", "sizes"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (30, [15, 15]), (100, [34, 33, 33])]
)
def test_split_into_blocks_makes_two_of_two_steps(steps, sizes):
    # One of them is timed phase by phase, which leaves at least one to the headline.
    assert split_into_blocks(steps) == sizes


@untimed
@given(STEPS, SEEDS)
def test_plan_blocks_pairs_blocks_of_the_same_length(steps, seed):
    plans = planned(steps, seed)
    # Where a plan can be cut, so that before the cut stand lone training blocks and pairs of equals.
    cuts = {0}
    for index, (plan, following) in enumerate(zip(plans, [*plans[1:], None], strict=True)):
        if index in cuts and plan.mode == "training":
            cuts.add(index + 1)
        if index in cuts and following and plan.mode != following.mode and plan[1:] == following[1:]:
            cuts.add(index + 2)
    assert len(plans) in cuts


@untimed
@example(60, 0)
@example((REFERENCE_BLOCKS - 1) * BLOCK_STEPS, 0)
@given(STEPS, SEEDS)
def test_plan_blocks_spreads_references_and_times_phases_of_one_pair(steps, seed):
    plans = planned(steps, seed)
    references = [index for index, plan in enumerate(plans) if plan.mode == "reference"]
    trained = len(of("training", plans))
    assert len(references) <= REFERENCE_BLOCKS
    assert len(references) == trained or trained >= REFERENCE_BLOCKS, "a short training pairs every block"
    assert min(references) <= 1
    assert max(references) >= len(plans) - 2
    phased = [plan for plan in plans if plan.phased]
    assert sorted(plan.mode for plan in phased) == (["reference", "training"] if steps > 1 else [])
    assert len({plan.steps for plan in phased}) <= 1
    assert any(not plan.phased for plan in of("reference", plans))


@untimed
@given(STEPS, SEEDS)
def test_plan_blocks_trains_all_steps_alike_without_a_reference(steps, seed):
    alone = planned(steps, seed, reference=False)
    assert alone == of("training", planned(steps, seed))
    assert sum(plan.steps for plan in alone) == steps
    assert sum(plan.phased for plan in alone) == (steps > 1)
    assert any(not plan.phased for plan in alone), "a block is left for the step time"


def test_plan_blocks_order_is_random_with_either_side_first_half_the_time():
    plans = [tuple(planned(400, f"0/{number}")) for number in range(1000)]
    assert len(set(plans[:20])) > 15
    assert 430 < sum(plan[0].mode == "reference" for plan in plans) < 570  # 4.4 standard deviations


def test_plan_blocks_order_of_a_seed_never_changes():
    """An old run, repeated with its seed, has the same blocks."""
    spelled = [f"{plan.mode[0]}{plan.steps}{'*' * plan.phased}" for plan in planned(100, "0/2")]
    assert spelled == ["t34", "r34", "r33*", "t33*", "t33", "r33"]


# ---- the training ----


class Log:
    """Steps and progress records in their order, as replica and as watchdog."""

    passes_per_step = 1
    cycle = 1
    learn = Replica.learn
    module = staticmethod(lambda inputs: torch.zeros((len(inputs), 10)))

    def __init__(self, at_once=1000, clock=None, step_seconds=0.0):
        self.at_once, self.clock, self.step_seconds = at_once, clock, step_seconds
        self.steps_between_notes, self.expected, self.trained = [], [], []

    def backward(self, loss):
        pass

    def sync(self):
        pass

    def step(self):
        self.steps_between_notes[-1] += 1
        if self.clock:
            self.clock.ns += round(self.step_seconds * 1e9)

    def steps_at_once(self, step_seconds):
        del step_seconds
        return self.at_once

    def note(self, *_, expected_seconds=0.0):
        self.steps_between_notes.append(0)
        self.expected.append(expected_seconds)

    @property
    def steps(self):
        return sum(self.steps_between_notes)


def a_job(label, steps=100, warmup_steps=4):
    config = a_config(label, ranks=1, steps=steps, warmup_steps=warmup_steps)
    return SimpleNamespace(config=config, arm=config.arms[0], number=1)


def a_side(log):
    return Side(log, batches(), classify)


def a_trainer(job, log, group=GROUP, step_seconds=1.0, **sides):
    return BlockTrainer(
        job,
        {"training": a_side(log), **sides},
        group,
        log,
        step_seconds=step_seconds,
        on_trained=lambda: log.trained.append(log.steps),
    )


def take(*known, **more):
    return list(a_trainer(*known, **more).train_blocks())


def batches():
    while True:
        yield torch.zeros((2, 784)), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(("steps", "cycle"), [(100, 8), (100, 1), (24, 8), (12, 8)])
def test_blocks_times_whole_multiples_of_the_cycle(steps, cycle):
    job, log = a_job("single", steps=steps), Log()
    log.cycle = cycle
    blocks = take(job, log)
    assert all(block.steps % cycle == 0 for block in blocks)
    assert log.steps % cycle == 0
    assert untimed_steps(job.config, cycle) + log.steps == steps


def test_blocks_refuses_a_cycle_longer_than_the_timed_steps():
    job, log = a_job("single", steps=11), Log()
    log.cycle = 8
    with pytest.raises(BackendError, match="repeats every 8 steps, but only 7 steps are timed"):
        take(job, log)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the steps of a test advance."""
    now = SimpleNamespace(ns=0)
    monkeypatch.setattr(meters, "perf_counter_ns", lambda: now.ns)
    monkeypatch.setattr(meters, "process_time_ns", lambda: 0)
    return now


@pytest.mark.parametrize("at_once", [1, 7, 29, 30, 31, 1000])
def test_blocks_records_progress_within_the_stall(at_once, clock):
    log = Log(at_once, clock, step_seconds=2.0)
    job = a_job("ddp")
    blocks = take(job, log, step_seconds=2.0)
    counted = 100 - job.config.untimed_steps
    assert log.steps == counted, "every step is trained once"
    assert sum(block.steps for block in blocks) == counted - len(blocks), "all but the first of every block"
    assert max(log.steps_between_notes) <= at_once
    assert set(log.expected) == {2.0}, "the expected time is that of a step, not of a block"
    if at_once == 1000:
        assert len(log.steps_between_notes) == len(blocks), "a short block has one record"


@pytest.mark.parametrize("known", [0.001, 40.0])
def test_blocks_updates_the_step_time_by_every_block(known, clock):
    """Without a warm-up only the slow first step is known."""
    log = Log(clock=clock, step_seconds=2.5)
    log.steps_at_once = Watchdog(None, None, stall_seconds=15.0).steps_at_once
    _, second, *_ = take(a_job("ddp"), log, step_seconds=known)
    later = log.steps_between_notes[-second.steps :]
    assert max(later) == 2, "three times two steps of 2.5 s are 15 s"
    assert log.expected[-1] == 2.5


def test_blocks_phased_block_in_pieces_has_all_phases():
    log = Log(at_once=4)
    blocks = take(a_job("ddp"), log)
    (phased,) = [block for block in blocks if block.phases]
    assert {len(times) for times in phased.phases.values()} == {phased.steps}


def a_group(log, waits):
    """A group whose barrier lists the steps done and the expected wait."""
    return SimpleNamespace(device=GROUP.device, barrier=lambda: waits.append((log.steps, log.expected[-1])))


def test_blocks_waits_for_ranks_after_the_reference(clock):
    log, waits = Log(3, clock, step_seconds=1.0), []
    job = a_job("ddp")
    blocks = take(job, log, a_group(log, waits), reference=a_side(log))
    steps = [block.steps + 1 for block in blocks]
    after = [
        (sum(steps[: index + 1]), steps[index])
        for index, block in enumerate(blocks)
        if block.mode == "reference"
    ]
    assert after
    # Steps that synchronise need no barrier.
    assert waits == [(0, job.config.untimed_steps), *after]


def test_blocks_of_the_control_waits_before_every_block(clock):
    log, waits = Log(clock=clock, step_seconds=1.0), []
    job = a_job("none")
    blocks = take(job, log, a_group(log, waits))
    assert len(waits) == 1 + len(blocks)
    assert waits[0] == (0, job.config.untimed_steps), "after the warm-up"


def test_blocks_of_one_step_times_it():
    log = Log()
    job = a_job("ddp", steps=3, warmup_steps=1)
    assert [block.steps for block in take(job, log)] == [1, 1]


def test_warm_up_records_progress_within_the_stall():
    log = Log(at_once=3)
    _warm_up(a_side(log), 12, GROUP.device, log, 5.0)
    assert log.steps_between_notes == [3, 3, 3, 1], "two steps were taken before"
    assert log.expected[0] == 5.0, "at first, by the first step"
    assert max(log.expected[1:]) < 1.0, "then by the last piece"


def test_make_reference_has_the_passes_of_the_arm():
    config = a_config("ddp", ranks=1, accumulate=3, batch_size_per_rank=4, model="mlp:784-8-10")
    images, labels = torch.randn(240, 784), torch.randint(10, (240,))
    task = MnistTask(config, None, images, labels)
    side = make_reference(Replica, task, iter(task.batches((0, 1))), GROUP, 1)
    assert side.replica.passes_per_step == 3


# ---- turns ----


def test_turn_times_all_but_its_first_steps_and_the_first_turn_has_phases():
    log, job = Log(), a_job("ddp", steps=1000)
    trainer = a_trainer(job, log)
    for number in (1, 2, 3):
        blocks = [*trainer.train_turn(Turn(number=number, untimed_steps=7, timed_steps=90))]
        assert {block.turn for block in blocks} == {number}
        assert sum(block.steps for block in blocks) == 90 - len(blocks), "all but the first of every block"
        assert log.steps == number * (7 + 90)
        assert trainer.steps_done == job.config.untimed_steps + number * 97
        assert sum(bool(block.phases) for block in blocks) == (number == 1)


@pytest.mark.parametrize(
    ("steps", "cycle"), [(20, 1), (60, 1), (100, 1), (101, 1), (500, 1), (104, 8), (500, 8)]
)
def test_training_ends_after_exactly_its_steps_in_whole_cycles(steps, cycle):
    """Turns may train on after it, or end before it."""
    log, job = Log(), a_job("ddp", steps=steps)
    log.cycle = cycle
    trainer = a_trainer(job, log)
    for number in (1, 2):
        blocks = [*trainer.train_turn(Turn(number=number, untimed_steps=3, timed_steps=60))]
        assert blocks
        assert all(block.steps % cycle == 0 for block in blocks)
    trainer.finish()
    assert log.trained == [steps - untimed_steps(job.config, cycle)]


@pytest.mark.parametrize("cycle", [1, 2, 3])
def test_turn_of_slow_steps_times_five_of_them(cycle):
    log = Log()
    log.cycle = cycle
    trainer = a_trainer(a_job("ddp", steps=6000), log)
    for number in (1, 2):
        blocks = [*trainer.train_turn(Turn(number=number, untimed_steps=1, timed_steps=1))]
        assert sum(block.steps for block in blocks if not block.phases) >= LEAST_STEPS
        assert any(block.phases for block in blocks) is (number == 1)


def test_turn_has_reference_blocks_of_the_same_length():
    log = Log()
    trainer = a_trainer(a_job("ddp", steps=5000), log, reference=a_side(log))
    blocks = [*trainer.train_turn(Turn(number=2, untimed_steps=3, timed_steps=600))]
    referred = [block for block in blocks if block.mode == "reference"]
    assert 1 <= len(referred) <= 4
    assert len(blocks) - len(referred) == 20
