"""Attest what a rank really runs, by facts that are read back from libraries and the kernel."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from itertools import zip_longest

import torch

from backends.base import Facts, Group, Replica
from compare import PACKAGE_ROOT, __version__
from compare.schema.environment import library_settings
from compare.schema.job import Job, LaunchJob
from compare.system.limits import core_quota
from compare.system.processor import processor_name
from compare.worker.messages import noted_warnings
from compare.worker.task import Batches
from compare.worker.user_file import default_dtype_of_user

_GPU_FIGURES = {
    "clocks.sm": "clock_mhz",
    "clocks.max.sm": "clock_limit_mhz",
    "power.limit": "power_limit_watts",
}
"""Names of facts about a GPU, by the name that ``nvidia-smi`` has for each."""
_NVIDIA_SMI_SECONDS = 10.0


def attest_group(group: Group, job: LaunchJob) -> Facts:
    """Return the facts that need no training, such as device, CPUs, versions and settings.

    All ranks must call this at the same point, because some groups measure facts by a collective.
    """
    device = group.device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processor": processor_name(),
        "gpu": _attest_gpu(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "torch": str(torch.__version__),
        "affinity": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "core_quota": core_quota(),
        "python": platform.python_version(),
        "prefix": sys.prefix,
        "ringside": __version__,
        "sources": str(PACKAGE_ROOT),
        "malloc": {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},
        "group": group.attest(),
        "environment": library_settings(os.environ, hidden=job.exported),
        "warnings": noted_warnings(),
    }


def attest(
    group: Group, replica: Replica, batches: Batches, job: Job, held: Facts, *, was_reset: bool
) -> Facts:
    """Return the facts of ``attest_group``, and those of the training; all ranks must call this together.

    ``held`` has the bytes of what the rank holds only within a step, such as gradients. ``was_reset`` is
    whether the kernel reset the peak of memory after the proof.
    """
    return attest_group(group, job) | {
        "default_dtype": default_dtype_of_user(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "batch": batches.attest(),
        "parameter_dtypes": sorted({str(p.dtype) for p in replica.model.parameters()}),
        "optimizer": _attest_optimizer(replica.optimizer, scheduled=job.dataset.name == "own"),
        "replica": replica.attest()
        | {
            "class": type(replica).__name__,
            "phases": list(replica.phases),
            "cycle": replica.cycle,
            "broadcasts_buffers": replica.broadcasts_buffers,
        },
        "held": replica.held_bytes() | held,
        "peak_memory_without_parity": was_reset,
    }


def _attest_gpu(device: torch.device) -> Facts:
    """Return a GPU's memory in bytes, driver version, clocks in MHz and power limit in watts.

    All but the memory come from ``nvidia-smi``. A fact that it does not report is None.
    """
    properties = torch.cuda.get_device_properties(device)
    command = [
        "nvidia-smi",
        f"--id=GPU-{properties.uuid}",
        f"--query-gpu=driver_version,{','.join(_GPU_FIGURES)}",
    ]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_SECONDS,
            check=True,
        )
        driver, *figures = map(str.strip, done.stdout.split(","))
    except (OSError, subprocess.SubprocessError):
        driver, figures = None, []
    reported = zip_longest(_GPU_FIGURES.values(), map(_number_or_none, figures))
    return {"memory_bytes": properties.total_memory, "driver": driver or None} | dict(reported)


def _number_or_none(text: str) -> float | None:
    with suppress(ValueError):  # such as [N/A]
        return float(text)
    return None


def _attest_optimizer(optimizer: torch.optim.Optimizer, *, scheduled: bool = False) -> Facts:
    """Return the optimizer's class, and the numbers, flags and tuples in each of its parameter groups.

    If the learning rates may be ``scheduled``, they are left out: a schedule changes them from step to step,
    and the number of steps depends on how long the last turn was.
    """
    left_out = {"lr", "initial_lr"} if scheduled else set()
    groups = [
        {
            name: value
            for name, value in group.items()
            if isinstance(value, (bool, int, float, tuple)) and name not in left_out
        }
        for group in optimizer.param_groups
    ]
    return {"class": type(optimizer).__name__, "groups": groups}
