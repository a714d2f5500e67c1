"""Prepare a rank: set its threads, check its CPUs, and choose its device."""

from __future__ import annotations

import os

import torch

from backends.base import BackendError, Placement
from compare.schema.job import LaunchJob


def prepare_rank(job: LaunchJob, placement: Placement) -> torch.device:
    """Set the number of torch's threads, check the CPUs, and return the rank's device.

    Raises:
        BackendError: the rank has no GPU of its own, or other CPUs or threads than the job requires.
    """
    torch.set_num_threads(job.config.threads_per_rank)
    _require_same_conditions(job)
    return _device(job.config.device, placement)


def _device(kind: str, placement: Placement) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    there = torch.cuda.device_count()
    if placement.local_rank >= there:
        raise BackendError(
            f"Host {placement.host}: local rank {placement.local_rank} has no GPU of its own. "
            f"The host has {there}. Use fewer ranks per host, or --device cpu."
        )
    device = torch.device("cuda", placement.local_rank)
    torch.cuda.set_device(device)
    return device


def _require_same_conditions(job: LaunchJob) -> None:
    """Raise ``BackendError`` if CPUs or threads differ from the job's, which are those of all arms."""
    expected = (job.affinity, job.config.threads_per_rank)
    found = (sorted(os.sched_getaffinity(0)), torch.get_num_threads())
    if found != expected:
        raise BackendError(
            f"This rank has CPUs {found[0]} and {found[1]} threads, not {expected[0]} and {expected[1]}. "
            "Arms with different bindings cannot be compared."
        )
