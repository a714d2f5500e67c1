"""Do one rank's part of a launch: join the group, prove the arm, train, test, measure and attest.

No other module of ``compare`` calls ``backends.load``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import nn

import backends
from backends.base import BackendError, Facts, Placement, Replica
from backends.collectives import Collectives
from compare.schema.arms import CONTROL
from compare.schema.collectives import RankSweep
from compare.schema.job import Job, LaunchJob, Stage, SweepJob
from compare.schema.parity import Fingerprint
from compare.schema.results import Block, RankResult, StepCall
from compare.schema.turns import GO_ON, Memory
from compare.worker import meters
from compare.worker.attest import attest, attest_group
from compare.worker.blocks import BlockTrainer, Side, Sides, make_reference, make_side, untimed_steps
from compare.worker.collectives import sweep, time_collectives, time_sizes
from compare.worker.compilation import load_compiler
from compare.worker.end_step import take_end_step
from compare.worker.held import take_counted_step
from compare.worker.mnist import EVALUATION_BATCH, MnistTask
from compare.worker.observed import Trained, take_first_step, test_model, time_gradients
from compare.worker.own import OwnTask
from compare.worker.parity import prove_steps, repeats_proven
from compare.worker.preflight import preflight
from compare.worker.randomness import seed_generators
from compare.worker.shards import hash_tensors
from compare.worker.task import Task
from compare.worker.turn_pipes import TurnPipes
from compare.worker.user_file import load_workload
from compare.worker.watchdog import PassTimer, Watchdog

_WARM_UP_PIECE = 10
"""Maximum number of warm-up steps between two progress records."""


def run(job: Job, placement: Placement, watchdog: Watchdog) -> RankResult:
    """Do a rank's part of a launch that trains, and return what the rank measured and attested.

    Raises:
        BackendError: the backend cannot do on this host what the arm requests.
        DataError: the data set is damaged.
        Exception: any error of the workload or of a library; the caller records it.
    """
    return _Rank(job, placement, watchdog).run()


def sweep_group(job: SweepJob, placement: Placement, watchdog: Watchdog) -> RankSweep:
    """Time a group's collectives without any training, and return what the rank measured and attested.

    Raises:
        BackendError: the group cannot do on this host what was requested.
    """
    watchdog.note("load")
    device = _prepare_device(job, placement)
    make_group = backends.load_group(job.group)
    watchdog.note("join")
    group = make_group.join(placement, device, job.arm.options, job.config.launch_timeout_seconds)
    meter = meters.CPUMeter()
    timings = time_sizes(group, job, watchdog)
    machine, cpu_ns = meter.read()
    watchdog.note("end", len(timings))
    result = RankSweep(
        rank=placement.rank,
        local_rank=placement.local_rank,
        host=placement.host,
        pid=os.getpid(),
        timings=timings,
        cpu_ns=cpu_ns,
        machine=machine if placement.local_rank == 0 else None,
        attestation=attest_group(group, job),
    )
    # Ranks attest their open connections, so all of them keep theirs open up to this point.
    group.barrier()
    group.leave()
    return result


def _prepare_device(job: LaunchJob, placement: Placement) -> torch.device:
    """Set the number of torch's threads, check the CPUs of this process, and return the rank's device.

    Raises:
        BackendError: the rank has no GPU of its own, or other CPUs than the job requires.
    """
    torch.set_num_threads(job.config.threads_per_rank)
    if (found := sorted(os.sched_getaffinity(0))) != job.affinity:
        raise BackendError(
            f"This rank may use the CPUs {found}, but the launch requires {job.affinity}. Arms on different "
            "CPUs cannot be compared. Remove settings that bind processes to CPUs."
        )
    if job.config.device == "cpu":
        return torch.device("cpu")
    gpus, local_rank = torch.cuda.device_count(), placement.local_rank
    if job.config.shares_gpus and gpus:
        # NCCL refuses two ranks of one host on one GPU, so it gets to see every rank as a host.
        os.environ["NCCL_HOSTID"] = f"ringside-rank-{placement.rank}"
        local_rank %= gpus
    if local_rank >= gpus:
        raise BackendError(
            f"Host {placement.host}: local rank {local_rank} has no GPU of its own, because torch "
            f"finds {gpus}. Use fewer ranks per host, or --device cpu."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _load_task(job: Job, device: torch.device) -> Task:
    """Load the user's workload, or the data of a built-in model, and return the task to train."""
    if job.dataset.name == "own":
        return OwnTask(job.config, load_workload(job.dataset, job.config.seed), device)
    return MnistTask.load(job.config, job.dataset, device)


class _Rank:
    """One rank of a launch that trains; its constructor loads the task and joins the group."""

    def __init__(self, job: Job, placement: Placement, watchdog: Watchdog) -> None:
        self._job, self._placement, self._watchdog = job, placement, watchdog
        self._start_up = meters.StartUp(job.launched_at)
        config = job.config
        watchdog.note("load", limit_seconds=config.compile_limit_seconds)
        device = _prepare_device(job, placement)
        load_compiler(config, device)
        make_group, strategy = backends.load(job.arm.backend, job.arm.options)

        watchdog.note("data")
        self._task = _load_task(job, device)
        make_replica: Callable[..., Replica] = strategy
        if job.arm.traits.own_step:
            make_replica = partial(make_replica, make_step=self._task.make_step)
        self._make = make_replica
        """A function of a model, a ``MakeOptimizer``, the group and options that returns a replica."""
        self._start_up.mark("data_ready")
        self._peak_bytes = meters.peak_memory_bytes()
        """Largest resident set of this process, in bytes, without the trial and the proof."""
        with self._start_up.left_out():
            if isinstance(self._task, OwnTask):
                shard = (placement.rank, placement.world_size)
                preflight(job, self._task, strategy, shard, partial(watchdog.note, "data"))

        watchdog.note("join")
        self._group = make_group.join(placement, device, job.arm.options, config.launch_timeout_seconds)
        self._start_up.mark("joined")
        # The first optimizer of a process loads more of torch for a second: start-up time, in every arm.
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        self._pipes = TurnPipes(Path(job.turns), self._group.rank) if job.turns else None
        """The pipes to this host's agent, which starts the turns; None in a launch without turns."""
        self._trained: Trained
        self._held: Facts = {}
        """What ``take_counted_step`` found."""
        self._steps, self._step_seconds = 0, 0.0
        """Number of steps taken, including the warm-up, and seconds of a step in the slowest block."""

    def run(self) -> RankResult:
        """Prove the arm, train, test, measure and attest, leave the group, and return the result."""
        job, group, watchdog, task = self._job, self._group, self._watchdog, self._task
        with self._start_up.left_out():
            self._wait_for_others()
            self._peak_bytes = max(self._peak_bytes, meters.peak_memory_bytes())
            parity = [] if job.proven else prove_steps(job, self._make, task, group, watchdog)
            proof = meters.read_memory(group.device)
            was_reset = meters.reset_peak_memory(group.device)

        watchdog.note("replica")
        replica = self._make(task.build_model(), task.make_optimizer, group, job.arm.options)
        task.prepare(replica)
        # From here on, dropout may differ between ranks, but not between runs.
        seed_generators(job.config.seed + 1 + group.rank)
        initial_hash = hash_tensors(replica.whole().parameters())
        self._start_up.mark("replica_ready")

        watchdog.note("warm-up", limit_seconds=job.config.compile_limit_seconds)
        batches = task.batches(replica.shard)
        side = make_side(replica, task, iter(batches))
        is_alone = untimed_steps(job.config, replica.cycle) == 1
        first = take_first_step(side, job.config, group.device, is_counted=is_alone)
        self._start_up.mark("first_step_done")
        self._held = first.held
        measured = self._time(side, first.seconds, proof) | self._measure(side)
        fingerprint = Fingerprint(initial_hash, self._trained.final_hash, self._trained.buffer_hash)
        if job.proven and job.arm.traits.synchronises and not repeats_proven(job, fingerprint, group):
            parity = prove_steps(job, self._make, task, group, watchdog)
        attested = attest(group, replica, batches, job, self._held, was_reset=was_reset)
        result = RankResult(
            rank=self._placement.rank,
            local_rank=self._placement.local_rank,
            host=self._placement.host,
            pid=os.getpid(),
            initial_hash=initial_hash,
            **measured,
            moments=self._start_up.read(),
            parity=parity,
            **self._trained._asdict(),
            whole_peak_memory_bytes=max(proof.peak_bytes, meters.peak_memory_bytes()),
            attestation=attested | first.attested | task.attest() | self._attest_peaks(proof),
        )
        # Ranks attest their open connections, so all of them keep theirs open up to this point.
        self._wait_for_others(self._steps)
        watchdog.note("end", self._steps)
        group.barrier()
        group.leave()
        return result

    def _attest_peaks(self, proof: Memory) -> Facts:
        """Return the largest sizes of what other limits than that of a host's memory are on, in bytes.

        ``proof`` has the peaks up to the end of the proof, after which those of the GPU were reset.
        """
        memory = meters.read_memory(self._group.device, proof)
        return {"peak_address_bytes": meters.peak_address_bytes(), "peak_gpu_bytes": memory.gpu_peak_bytes}

    def _wait_for_others(self, steps: int = 0) -> None:
        """Wait until no other arm is measured, if the launch takes turns; ``steps`` are those done so far."""
        if self._pipes:
            self._watchdog.wait_for_turn(steps)
            self._pipes.wait(0.0, meters.read_memory(self._group.device))

    # ---- the training ----

    def _time(self, side: Side, step_seconds: float, earlier: Memory) -> dict[str, Any]:
        """Warm up, train the timed steps, test the model, and return fields of ``RankResult``.

        Finally, the gradients of the reference are timed. ``step_seconds`` is the time of the first step, and
        ``earlier`` has the peaks of memory up to the end of the proof.
        """
        job, group, pipes = self._job, self._group, self._pipes
        untimed = untimed_steps(job.config, side.replica.cycle)
        if not self._held:
            # The second step: in the first, libraries still settle their buckets.
            self._watchdog.note("warm-up", 1, expected_seconds=step_seconds)
            begun = monotonic()
            self._held = take_counted_step(side, job.config)
            meters.read_clock(group.device)
            step_seconds = monotonic() - begun
        step_seconds = _warm_up(side, untimed, group.device, self._watchdog, step_seconds)
        peak, device_peak = meters.peak_memory_bytes(), meters.peak_device_memory_bytes(group.device)
        sides: Sides = {"training": side}
        if job.arm.traits.has_sync_cost and job.proof != "none":
            sides["reference"] = self._make_reference(side, untimed, step_seconds)
        meter = meters.CPUMeter()

        def test() -> None:
            with meter.left_out():
                self._trained = self._test(side, trainer.step_seconds)

        trainer = BlockTrainer(job, sides, group, self._watchdog, step_seconds=step_seconds, on_trained=test)
        memory = partial(meters.read_memory, group.device, earlier)
        blocks = self._take_turns(trainer, pipes, meter, memory) if pipes else list(trainer.train_blocks())
        machine, cpu_ns = meter.read()
        if pipes:
            trainer.finish()
        slowest_ns = max(block.wall_ns / block.steps for block in blocks if block.mode == "training")
        self._steps, self._step_seconds = trainer.steps_done, slowest_ns / 1e9
        note = partial(self._note, "reference", self._steps)
        reference = sides.get("reference")
        return {
            "blocks": blocks,
            "peak_memory_bytes": max(self._peak_bytes, peak),  # without the reference
            "peak_device_memory_bytes": device_peak,
            "gradients": time_gradients(reference, group.device, note) if reference else [],
            "cpu_ns": cpu_ns,
            "waited_ns": pipes.waited_ns if pipes else 0,
            "waited_cpu_ns": pipes.waited_cpu_ns if pipes else 0,
            "trained_steps": self._steps,
            "machine": machine if self._placement.local_rank == 0 else None,
        }

    def _make_reference(self, side: Side, untimed: int, step_seconds: float) -> Side:
        """Return the reference of the arm, which trains on the same batches without synchronisation."""
        config, task = self._job.config, self._task
        limit_seconds = config.compile_limit_seconds
        self._watchdog.note("reference", untimed, expected_seconds=step_seconds, limit_seconds=limit_seconds)
        _, make_control = backends.load(CONTROL, {})
        batches = iter(task.batches(side.replica.shard))
        steps = min(config.untimed_steps, self._watchdog.steps_at_once(step_seconds))
        return make_reference(make_control, task.anew(), batches, self._group, steps)

    def _take_turns(
        self, trainer: BlockTrainer, pipes: TurnPipes, meter: meters.CPUMeter, memory: Callable[[], Memory]
    ) -> list[Block]:
        """Train in turns until the agent sends ``GO_ON``, and return the timed blocks of all turns."""
        blocks: list[Block] = []
        trainer.begin()
        while True:
            with meter.left_out():
                self._watchdog.wait_for_turn(trainer.steps_done)
                turn = pipes.wait(trainer.step_seconds, memory())
            if turn == GO_ON:
                return blocks
            blocks += trainer.train_turn(turn)

    def _test(self, side: Side, step_seconds: float) -> Trained:
        """Test the model after its last training step; all ranks must call this together."""
        config = self._job.config

        def note(samples: float = EVALUATION_BATCH) -> None:
            # A forward pass takes no longer than a step.
            expected_seconds = step_seconds * samples / config.batch_size_per_rank
            self._watchdog.note("test", config.total_steps, expected_seconds=expected_seconds)

        note()
        communicates = self._job.arm.traits.communicates
        trained = test_model(self._task, side.replica, self._group, note, communicates=communicates)
        # A rank that is still testing would slow down the next block of others.
        note(trained.evaluation.samples)
        self._group.barrier()
        return trained

    # ---- after the training ----

    def _measure(self, side: Side) -> dict[str, Any]:
        """Take and compare one more step, time collectives, and return fields of ``RankResult``.

        The step is compared with one of a single process. The collectives are timed without training. A bare
        launch has no memory for either.
        """
        if self._job.proof == "none":
            self._note("end", self._job.config.total_steps, 1)
            return {"end": None, "message_bytes": [], "calls": [], "collective_ns": [], "sweep": []}
        job, group, total = self._job, self._group, self._job.config.total_steps
        timer = PassTimer(self._watchdog, group, pass_seconds=self._step_seconds)
        end = take_end_step(job.arm, side, self._task, group, timer, steps=self._steps)
        # A step's collectives take no longer than the step.
        note = partial(self._note, "collectives", total)
        collectives = self._record_collectives(side) if job.arm.traits.mixes_collectives else None
        collectives = collectives or side.replica.collectives()
        message_bytes, collective_ns = time_collectives(collectives, group, note)
        calls = [StepCall(**call._asdict()) for call in collectives.calls] if collectives else []
        swept = sweep(message_bytes, side.replica, group, note)
        # Other ranks may still measure, and some libraries attest by a collective.
        self._note("end", total, 1)
        return {
            "end": end,
            "message_bytes": message_bytes,
            "calls": calls,
            "collective_ns": collective_ns,
            "sweep": swept,
        }

    def _record_collectives(self, side: Side) -> Collectives | None:
        """Take a step that is not timed, and return the collectives that it asked the library for."""
        self._note("collectives", self._job.config.total_steps, 1)
        batches = iter(self._task.batches(side.replica.shard))
        return self._group.record(lambda: side._replace(batches=batches).train(1))

    def _note(self, stage: Stage, done: int, steps: int) -> None:
        """Record that work begins which may take as long as so many training steps."""
        self._watchdog.note(stage, done, expected_seconds=steps * self._step_seconds)


def _warm_up(side: Side, steps: int, device: torch.device, watchdog: Watchdog, step_seconds: float) -> float:
    """Train the warm-up after its first two steps, and return the seconds of a step in its last piece.

    ``steps`` includes these two, and ``step_seconds`` is the time of the second.
    """
    done = 2
    while done < steps:
        watchdog.note("warm-up", done, expected_seconds=step_seconds)
        piece = min(_WARM_UP_PIECE, watchdog.steps_at_once(step_seconds), steps - done)
        begun = monotonic()
        side.train(piece)
        meters.read_clock(device)
        done, step_seconds = done + piece, (monotonic() - begun) / piece
    return step_seconds
