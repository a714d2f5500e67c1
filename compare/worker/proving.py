"""Prove the training of one launch, by a comparison with a single process.

A run proves each arm before its first training. A later launch with the same start and end, bit for bit,
trained the same, so the proof holds for that launch too. Any other launch is proven after its training.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from backends.base import Group, MakeOptimizer, Replica
from compare.schema.job import PASSES, Job
from compare.schema.parity import EndStep, Fingerprint, ParityPass
from compare.worker.blocks import Side
from compare.worker.compilation import compiled_for_proof
from compare.worker.end_step import take_end_step
from compare.worker.pace import WatchedPace
from compare.worker.parity import prove
from compare.worker.task import Task
from compare.worker.watchdog import Watchdog


def repeats_proven(job: Job, found: Fingerprint, group: Group) -> bool:
    """Return whether every rank's start and end equal those of the arm's proven launches. Collective.

    False if the arm has no proven launch.
    """
    if not job.proven:
        return False
    differing = torch.tensor([float(found != job.proven[group.rank])], device=group.device)
    group.all_reduce_(differing)
    return not differing.item()


def prove_steps(
    job: Job, make_replica: Callable[..., Replica], task: Task, group: Group, watchdog: Watchdog
) -> list[ParityPass]:
    """Return the passes of the job's proof, which compare a copy's steps with a single process's. Collective.

    Empty for the control, which has no proof. A pass is short, so options that act late get other values,
    which the registry has (``while_proven``).
    """
    if not job.arm.traits.synchronises:
        return []
    options = job.arm.options_while_proven

    def make(model: nn.Module, make_optimizer: MakeOptimizer) -> Replica:
        return make_replica(model, make_optimizer, group, options)

    pace = WatchedPace(watchdog, group, first_seconds=job.config.compile_limit_seconds)
    leads, brief, scaled = group.rank == 0, job.proof == "brief", job.arm.exact
    with compiled_for_proof(job.config):
        return [
            prove(make, task, kind, pace, leads=leads, brief=brief, scaled=scaled)
            for kind in PASSES[job.proof]
        ]


def prove_end(
    job: Job, own: Side, task: Task, group: Group, watchdog: Watchdog, *, steps: int, step_seconds: float
) -> EndStep | None:
    """Take one more step after the training, and compare it with a single process; None for the control."""
    if not job.arm.traits.synchronises:
        return None
    pace = WatchedPace(watchdog, group, pass_seconds=step_seconds)
    return take_end_step(job.arm, own, task, steps, pace, group=group)
