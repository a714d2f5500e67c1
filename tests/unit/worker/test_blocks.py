"""The arm and its reference, in one process: one rank, plain replicas, no launcher."""

from __future__ import annotations

import json
from io import BytesIO
from types import SimpleNamespace

import pytest
import torch

from backends.base import BackendError, Replica
from backends.strategies.local import LocalReplica
from compare.worker import clock as measure
from compare.worker.batches import Batches
from compare.worker.blocks import Side, make_reference, train_blocks, untimed_steps
from compare.worker.collectives import calls_in_a_row, time_collectives
from compare.worker.rank import _warm_up
from compare.worker.watchdog import Watchdog
from tests.unit.factories import a_config

GROUP = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"), barrier=lambda: None)


class Log:
    """Steps and notes in the order in which they come; a replica and a watchdog at once."""

    passes_per_step = 1
    cycle = 1
    learn = Replica.learn

    def __init__(self, at_once=1000, clock=None, step_seconds=0.0):
        self.at_once, self.clock, self.step_seconds = at_once, clock, step_seconds
        self.told, self.expected = [], []

    def forward(self, inputs):
        return torch.zeros((len(inputs), 10))

    def backward(self, loss):
        pass

    def sync(self):
        pass

    def step(self):
        self.told.append("step")
        if self.clock:
            self.clock.ns += round(self.step_seconds * 1e9)

    def steps_at_once(self, step_seconds):
        del step_seconds
        return self.at_once

    def note(self, stage, step=0, *, expected_seconds=0.0):
        self.told.append((stage, step))
        self.expected.append(expected_seconds)

    def steps_between_notes(self):
        found = []
        for entry in self.told:
            if entry == "step":
                found[-1] += 1
            else:
                found.append(0)
        return found


def a_job(label, steps=100, warmup_steps=4):
    config = a_config(label, ranks=1, steps=steps, warmup_steps=warmup_steps)
    return SimpleNamespace(config=config, arm=config.arms[0], number=1)


def batches():
    while True:
        yield torch.zeros((2, 784)), torch.zeros(2, dtype=torch.int64)


def take(job, sides, log, group=GROUP, step_seconds=1.0):
    return list(train_blocks(job, sides, group, log, step_seconds=step_seconds))


@pytest.mark.parametrize(("steps", "cycle"), [(100, 8), (100, 1), (24, 8), (12, 8)])
def test_timed_steps_are_whole_multiples_of_the_cycle(steps, cycle):
    job, log = a_job("single", steps=steps), Log()
    log.cycle = cycle
    blocks = take(job, {"training": Side(log, batches())}, log)
    assert all(block.steps % cycle == 0 for block in blocks)
    trained = log.told.count("step")
    assert trained % cycle == 0
    assert untimed_steps(job.config, cycle) + trained == steps


def test_a_cycle_longer_than_what_is_timed_is_refused():
    job, log = a_job("single", steps=11), Log()
    log.cycle = 8
    with pytest.raises(BackendError, match="cycle of 8 steps, but only 7 steps are timed"):
        take(job, {"training": Side(log, batches())}, log)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for what a test lets a step take."""
    now = SimpleNamespace(ns=0)
    monkeypatch.setattr(
        measure, "time", SimpleNamespace(perf_counter_ns=lambda: now.ns, process_time_ns=lambda: 0)
    )
    return now


@pytest.mark.parametrize("at_once", [1, 7, 29, 30, 31, 1000])
def test_a_block_that_takes_longer_than_the_stall_says_in_between_that_it_goes_on(at_once, clock):
    log = Log(at_once, clock, step_seconds=2.0)
    job = a_job("ddp")
    blocks = take(job, {"training": Side(log, batches())}, log, step_seconds=2.0)
    counted = 100 - job.config.untimed_steps
    assert log.told.count("step") == counted, "no step is lost or taken twice"
    assert sum(block.steps for block in blocks) == counted - len(blocks), "but for the first of every block"
    assert max(log.steps_between_notes()) <= at_once
    assert set(log.expected) == {2.0}, "what may take that long is a step, not a block"
    if at_once == 1000:
        assert len(log.steps_between_notes()) == len(blocks), "nothing is done in a short block but training"


@pytest.mark.parametrize("known", [0.001, 40.0])
def test_how_long_a_step_takes_is_learned_from_every_block(known, clock):
    """Without a warm-up there is only the first step, which loads things, to tell."""
    log = Log(clock=clock, step_seconds=2.5)
    log.steps_at_once = Watchdog(None, None, stall_seconds=15.0).steps_at_once
    _, second, *_ = take(a_job("ddp"), {"training": Side(log, batches())}, log, step_seconds=known)
    later = log.steps_between_notes()[-second.steps :]
    assert max(later) == 2, "three times two steps of 2.5 s are 15 s"
    assert log.expected[-1] == 2.5


def test_a_phased_block_in_pieces_has_the_phases_of_all_its_steps():
    log = Log(at_once=4)
    blocks = take(a_job("ddp"), {"training": Side(log, batches())}, log)
    (phased,) = [block for block in blocks if block.phases]
    assert {len(times) for times in phased.phases.values()} == {phased.steps}


def a_group(log, waits):
    """Note, at every barrier, how many steps are done, and how long the watchdog lets a rank wait."""
    return SimpleNamespace(
        device=GROUP.device, barrier=lambda: waits.append((log.told.count("step"), log.expected[-1]))
    )


def test_ranks_meet_after_they_trained_apart_and_wait_as_long_as_that_may_take(clock):
    log, waits = Log(3, clock, step_seconds=1.0), []
    sides = {"training": Side(log, batches()), "reference": Side(log, batches())}
    job = a_job("ddp")
    blocks = take(job, sides, log, a_group(log, waits))
    steps = [block.steps + 1 for block in blocks]
    after = [
        (sum(steps[: index + 1]), steps[index])
        for index, block in enumerate(blocks)
        if block.mode == "reference"
    ]
    assert after
    # Where ranks wait for each other in every step, another barrier would only cost time.
    assert waits == [(0, job.config.untimed_steps), *after]


def test_the_ranks_of_the_control_meet_before_the_first_block_too(clock):
    log, waits = Log(clock=clock, step_seconds=1.0), []
    job = a_job("none")
    blocks = take(job, {"training": Side(log, batches())}, log, a_group(log, waits))
    assert len(waits) == 1 + len(blocks)
    assert waits[0] == (0, job.config.untimed_steps), "they have warmed up apart"


def test_a_block_of_one_step_has_none_to_settle_with():
    log = Log()
    job = a_job("ddp", steps=3, warmup_steps=1)
    assert [block.steps for block in take(job, {"training": Side(log, batches())}, log)] == [1, 1]


def test_a_warm_up_is_noted_in_pieces_that_the_stall_allows():
    log = Log(at_once=3)
    _warm_up(Side(log, batches()), 12, GROUP.device, log, 5.0)
    assert log.steps_between_notes() == [3, 3, 3, 2]
    assert log.expected[0] == 5.0, "until there is better, by the first step"
    assert max(log.expected[1:]) < 1.0, "then by what was taken last"


@pytest.mark.parametrize("nbytes", [800_000, 80_000_000])
def test_collectives_are_noted_whenever_the_ranks_begin_anew(nbytes):
    told = []
    collectives = SimpleNamespace(message_bytes=[nbytes], run=lambda: told.append("call"))
    time_collectives(collectives, GROUP, told.append)
    calls = calls_in_a_row(nbytes)
    assert told == [calls, *["call"] * calls] * (len(told) // (calls + 1))


@pytest.mark.parametrize(
    ("step_seconds", "steps"), [(0.0, 5000), (0.005, 1000), (0.25, 20), (4.0, 1), (60.0, 1)]
)
def test_so_many_steps_go_by_between_notes_that_three_times_their_time_is_within_the_stall(
    step_seconds, steps
):
    watchdog = Watchdog(None, None, stall_seconds=15.0)
    assert watchdog.steps_at_once(step_seconds) == steps


@pytest.mark.parametrize(("expected", "patience"), [(0.0, 15.0), (4.0, 15.0), (6.0, 18.0)])
def test_what_should_take_long_is_waited_for_three_times_as_long_or_else_the_stall(
    monkeypatch, expected, patience
):
    armed, notes = [], BytesIO()
    watchdog = SimpleNamespace(dump_traceback_later=lambda seconds, **how: armed.append((seconds, how)))
    monkeypatch.setattr("compare.worker.watchdog.faulthandler", watchdog)
    file = SimpleNamespace(open=lambda *_, **_how: notes)
    files = SimpleNamespace(progress=lambda _: file)
    Watchdog(files, 1, stall_seconds=15.0).note("train", 7, expected_seconds=expected)
    assert armed == [(patience, {"exit": True})]
    noted = json.loads(notes.getvalue())
    assert (noted["stage"], noted["step"], noted["limit_seconds"]) == ("train", 7, patience)


def test_the_reference_takes_as_many_passes_a_step_as_the_arm():
    config = a_config("ddp", ranks=1, accumulate=3, batch_size_per_rank=4, model="mlp:784-8-10")
    images, labels = torch.randn(240, 784), torch.randint(10, (240,))
    side = make_reference(LocalReplica, config, iter(Batches(images, labels, (0, 1), config)), GROUP, 1)
    assert side.replica.passes_per_step == 3
