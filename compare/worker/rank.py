"""Do one rank's part of a launch: join, prove, train, test, measure and attest.

No other module calls ``backends.load``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import torch
from torch import nn

import backends
from backends.base import Group, Placement, Replica
from compare.schema.arms import CONTROL
from compare.schema.collectives import RankSweep
from compare.schema.job import Job, Stage, SweepJob
from compare.schema.parity import EndStep, Fingerprint, ParityPass
from compare.schema.results import Block, GradientTimes, MachineUse, RankResult, Sweep
from compare.schema.turns import GO_ON, Memory
from compare.worker.attest import attest, attest_group
from compare.worker.blocks import (
    FIRST_STEPS,
    BlockTrainer,
    Side,
    Sides,
    make_reference,
    make_side,
    untimed_steps,
)
from compare.worker.clock import read_clock
from compare.worker.collectives import sweep, time_collectives
from compare.worker.compilation import load_compiler
from compare.worker.conditions import prepare_rank
from compare.worker.evaluation import Trained, test_model
from compare.worker.first_step import take_first_step
from compare.worker.gradients import time_gradients
from compare.worker.loop import EVALUATION_BATCH
from compare.worker.memory import (
    peak_device_memory_bytes,
    peak_memory_bytes,
    read_memory,
    reset_peak_memory,
)
from compare.worker.meters import CPUMeter
from compare.worker.mnist import MnistTask
from compare.worker.parity import hash_parameters
from compare.worker.proving import prove_end, prove_steps, repeats_proven
from compare.worker.randomness import seed_generators
from compare.worker.start_up import StartUp
from compare.worker.sweep import time_sizes
from compare.worker.task import Task
from compare.worker.turn_pipes import TurnPipes
from compare.worker.watchdog import Watchdog

_WARM_UP_PIECE = 10


def run(job: Job, placement: Placement, watchdog: Watchdog) -> RankResult:
    """Do a rank's part of a launch that trains, and return what the rank measured and attests.

    Raises:
        BackendError: the backend cannot do on this host what the arm requests.
        DataError: the data set is damaged.
        Exception: any error of the workload or of a library; the caller records it.
    """
    start_up = StartUp(job.launched_at)
    joined = _join(job, placement, watchdog, start_up)
    group, device = joined.group, joined.group.device
    with start_up.left_out():
        _wait(joined, watchdog)
        earlier_peak = max(joined.peak_bytes, peak_memory_bytes())
        parity = [] if job.proven else prove_steps(job, joined.make_replica, joined.task, group, watchdog)
        proof = read_memory(device)
        was_reset = reset_peak_memory(device)

    watchdog.note("replica")
    replica = _make_replica(job, joined)
    initial_hash = hash_parameters(replica.whole())
    start_up.mark("replica_ready")

    watchdog.note("warm-up", limit_seconds=job.config.compile_limit_seconds)
    batches = joined.task.batches(replica.shard)
    own = make_side(replica, joined.task, iter(batches))
    first = take_first_step(own, job.config, device)
    start_up.mark("first_step_done")
    timed = _timed(job, own, joined, watchdog, first_step_seconds=first.seconds, earlier=proof)
    measured = _measure(job, own, joined, watchdog, timed)
    parity = parity or _prove_after(job, joined, initial_hash, timed.trained, watchdog)
    attested = attest(group, replica, batches, job, first.gradient_bytes, was_reset=was_reset)
    result = RankResult(
        rank=placement.rank,
        local_rank=placement.local_rank,
        host=placement.host,
        pid=os.getpid(),
        blocks=timed.blocks,
        initial_hash=initial_hash,
        peak_memory_bytes=max(earlier_peak, timed.peak_memory_bytes),
        peak_device_memory_bytes=timed.peak_device_memory_bytes,
        **measured._asdict(),
        gradients=timed.gradients,
        cpu_ns=timed.cpu_ns,
        waited_ns=timed.waited_ns,
        waited_cpu_ns=timed.waited_cpu_ns,
        trained_steps=timed.steps,
        machine=timed.machine if placement.local_rank == 0 else None,
        moments=start_up.read(),
        parity=parity,
        **timed.trained._asdict(),
        whole_peak_memory_bytes=max(proof.peak_bytes, peak_memory_bytes()),
        attestation=attested | first.attested | joined.task.attest(),
    )
    # Ranks attest their open connections, so all of them keep theirs open up to this point.
    _wait(joined, watchdog, timed.steps)
    watchdog.note("end", timed.steps)
    group.barrier()
    group.leave()
    return result


def _wait(joined: _Joined, watchdog: Watchdog, steps: int = 0) -> None:
    """Wait until no other arm is measured; return at once in a launch without turns."""
    if joined.pipes:
        watchdog.wait_for_turn(steps)
        joined.pipes.wait(0.0, read_memory(joined.group.device))


def sweep_group(job: SweepJob, placement: Placement, watchdog: Watchdog) -> RankSweep:
    """Time a group's collectives without any training, and return what the rank measured and attests.

    Raises:
        BackendError: the group cannot do on this host what was requested.
    """
    watchdog.note("load")
    device = prepare_rank(job, placement)
    make_group = backends.load_group(job.group)
    watchdog.note("join")
    group = make_group.join(placement, device, job.arm.options, job.config.launch_timeout_seconds)
    timings = time_sizes(group, job, watchdog)
    watchdog.note("end", len(timings))
    result = RankSweep(
        rank=placement.rank,
        local_rank=placement.local_rank,
        host=placement.host,
        pid=os.getpid(),
        timings=timings,
        attestation=attest_group(group, job),
    )
    # As in ``run``: ranks attest their open connections.
    group.barrier()
    group.leave()
    return result


class _Measured(NamedTuple):
    """Measurements after the training, named as in ``RankResult``."""

    end: EndStep | None
    message_bytes: list[int]
    collective_ns: list[int]
    sweep: list[Sweep]


def _measure(job: Job, own: Side, joined: _Joined, watchdog: Watchdog, timed: _Timed) -> _Measured:
    """Take one more step, comparing it with a single process, and time collectives without training."""
    replica, group = own.replica, joined.group

    def note(stage: Stage, steps: float) -> None:
        watchdog.note(stage, job.config.total_steps, expected_seconds=steps * timed.step_seconds)

    end = prove_end(
        job, own, joined.task, group, watchdog, steps=timed.steps, step_seconds=timed.step_seconds
    )
    # A step's collectives take no longer than the step.
    note_collectives = partial(note, "collectives")
    message_bytes, collective_ns = time_collectives(replica.collectives(), group, note_collectives)
    swept = sweep(message_bytes, replica, group, note_collectives)
    # Other ranks may still measure, and some libraries attest by a collective.
    note("end", 1)
    return _Measured(end, message_bytes, collective_ns, swept)


def _prove_after(
    job: Job, joined: _Joined, initial_hash: str, trained: Trained, watchdog: Watchdog
) -> list[ParityPass]:
    """Return the proof of a finished training; empty if it repeats a proven one, or in the control."""
    found = Fingerprint(initial_hash, trained.final_hash, trained.buffer_hash)
    if not job.arm.traits.synchronises or repeats_proven(job, found, joined.group):
        return []
    return prove_steps(job, joined.make_replica, joined.task, joined.group, watchdog)


def _test(job: Job, own: Side, joined: _Joined, watchdog: Watchdog, step_seconds: float) -> Trained:
    """Test the model after its last training step. Collective."""
    config = job.config

    def note() -> None:
        # A forward pass takes no longer than a step.
        expected_seconds = step_seconds * EVALUATION_BATCH / config.batch_size_per_rank
        watchdog.note("test", config.total_steps, expected_seconds=expected_seconds)

    note()
    return test_model(joined.task, own.replica, joined.group, note, communicates=job.arm.traits.communicates)


class _Joined(NamedTuple):
    """What a rank has loaded and made by the time that it has joined its group."""

    make_replica: Callable[..., Replica]
    """Takes a model, a function that makes its optimizer, the group and options; returns a replica."""
    group: Group
    task: Task
    peak_bytes: int
    """Largest resident set before the workload was tried."""
    pipes: TurnPipes | None
    """The pipes to the agent of this host; None in a launch without turns."""


def _join(job: Job, placement: Placement, watchdog: Watchdog, start_up: StartUp) -> _Joined:
    config = job.config
    watchdog.note("load", limit_seconds=config.compile_limit_seconds)
    device = prepare_rank(job, placement)
    load_compiler(config, device)
    make_group, strategy = backends.load(job.arm.backend, job.arm.options)

    watchdog.note("data")
    task = _load_task(job, device)
    make_replica: Callable[..., Replica] = strategy
    if job.arm.traits.own_step:
        make_replica = partial(make_replica, make_step=task.make_step)
    start_up.mark("data_ready")
    peak_bytes = peak_memory_bytes()
    with start_up.left_out():
        _try_out(job, task, strategy, placement, watchdog)

    watchdog.note("join")
    group = make_group.join(placement, device, job.arm.options, config.launch_timeout_seconds)
    start_up.mark("joined")

    # The first optimizer of a process loads more of torch for a second: start-up time, in every arm.
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    pipes = TurnPipes(Path(job.turns), group.rank) if job.turns else None
    return _Joined(make_replica, group, task, peak_bytes, pipes)


def _try_out(job: Job, task: Task, strategy: type[Replica], placement: Placement, watchdog: Watchdog) -> None:
    """Try a user's own workload, before the ranks form a group; do nothing for a built-in model.

    Raises:
        WorkloadError: this arm, or any arm, cannot train the workload.
    """
    if not task.is_own:
        return
    from compare.worker.own import OwnTask
    from compare.worker.preflight import preflight

    assert isinstance(task, OwnTask)  # noqa: S101 -- the one that is the user's own
    preflight(job, task, strategy, (placement.rank, placement.world_size), partial(watchdog.note, "data"))


def _load_task(job: Job, device: torch.device) -> Task:
    if job.dataset.name == "own":
        from compare.worker.own import OwnTask

        return OwnTask.load(job.config, job.dataset, device)
    return MnistTask.load(job.config, job.dataset, device)


def _make_replica(job: Job, joined: _Joined) -> Replica:
    config, group, task = job.config, joined.group, joined.task
    replica = joined.make_replica(task.build_model(), task.make_optimizer, group, job.arm.options)
    task.prepare(replica)
    # From here on, dropout may differ between ranks, but not between runs.
    seed_generators(config.seed + 1 + group.rank)
    return replica


def _warm_up(own: Side, steps: int, device: torch.device, watchdog: Watchdog, step_seconds: float) -> float:
    """Train the rest of the warm-up, and return the seconds of a step in its last piece.

    ``steps`` includes the first step, which took ``step_seconds`` and is the slowest.
    """
    done = 1
    while done < steps:
        watchdog.note("warm-up", done, expected_seconds=step_seconds)
        piece, begun = (
            min(_WARM_UP_PIECE, watchdog.steps_at_once(step_seconds), steps - done),
            monotonic(),
        )
        own.train(piece)
        read_clock(device)
        done, step_seconds = done + piece, (monotonic() - begun) / piece
    return step_seconds


class _Timed(NamedTuple):
    blocks: list[Block]
    step_seconds: float
    """Mean time of a step in the slowest training block."""
    steps: int
    """Steps taken, including the warm-up."""
    trained: Trained
    peak_memory_bytes: int
    peak_device_memory_bytes: int | None
    machine: MachineUse
    cpu_ns: int
    gradients: list[GradientTimes]
    waited_ns: int = 0
    waited_cpu_ns: int = 0


def _timed(
    job: Job, own: Side, joined: _Joined, watchdog: Watchdog, *, first_step_seconds: float, earlier: Memory
) -> _Timed:
    """Warm up, train the timed steps, test the model, and time the gradients of the reference.

    ``earlier`` has the peaks of memory up to the end of the proof.
    """
    config, group, pipes = job.config, joined.group, joined.pipes
    untimed = untimed_steps(config, own.replica.cycle)
    step_seconds = _warm_up(own, untimed, group.device, watchdog, first_step_seconds)
    peaks = peak_memory_bytes(), peak_device_memory_bytes(group.device)  # without the reference
    sides: Sides = {"training": own}
    if job.arm.traits.has_sync_cost:
        watchdog.note(
            "reference",
            untimed,
            expected_seconds=step_seconds,
            limit_seconds=config.compile_limit_seconds,
        )
        _, make_control = backends.load(CONTROL, {})
        same = iter(joined.task.batches(own.replica.shard))
        steps = min(FIRST_STEPS, config.untimed_steps, watchdog.steps_at_once(step_seconds))
        sides["reference"] = make_reference(make_control, joined.task.anew(), same, group, steps)
    tested: list[Trained] = []
    meter = CPUMeter()

    def test() -> None:
        with meter.left_out():
            tested.append(_test(job, own, joined, watchdog, trainer.step_seconds))
            # A rank that is still testing would slow down the next block of others.
            steps = tested[-1].evaluation.samples / config.batch_size_per_rank
            watchdog.note("test", config.total_steps, expected_seconds=steps * trainer.step_seconds)
            group.barrier()

    trainer = BlockTrainer(job, sides, group, watchdog, step_seconds=step_seconds, trained=test)
    memory = partial(read_memory, group.device, earlier)
    blocks = _take_turns(trainer, pipes, meter, watchdog, memory) if pipes else list(trainer.blocks())
    machine, cpu_ns = meter.read()
    if pipes:
        trainer.finish()
    slowest_ns = max(block.wall_ns / block.steps for block in blocks if block.mode == "training")

    def note(steps: int) -> None:
        watchdog.note("reference", trainer.steps_done, expected_seconds=steps * slowest_ns / 1e9)

    reference = sides.get("reference")
    gradients = time_gradients(reference, group.device, note) if reference else []
    return _Timed(
        blocks,
        slowest_ns / 1e9,
        trainer.steps_done,
        tested[0],
        *peaks,
        machine,
        cpu_ns,
        gradients,
        *((pipes.waited_ns, pipes.waited_cpu_ns) if pipes else ()),
    )


def _take_turns(
    trainer: BlockTrainer, pipes: TurnPipes, meter: CPUMeter, watchdog: Watchdog, memory: Callable[[], Memory]
) -> list[Block]:
    """Train in turns until the agent ends them, and return the timed blocks of all turns."""
    blocks: list[Block] = []
    trainer.begin()
    while True:
        with meter.left_out():
            watchdog.wait_for_turn(trainer.steps_done)
            turn = pipes.wait(trainer.step_seconds, memory())
        if turn == GO_ON:
            return blocks
        blocks += trainer.turn(turn)
