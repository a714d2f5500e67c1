"""Check the result of every collective of a group, with every dtype and operation that it takes.

No time is shown, because the ranks may share a GPU.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

from backends.launchers import read_placement
from compare.schema.collectives import COLLECTIVES, DTYPES, OPERATIONS, SweepConfig
from compare.schema.job import SweepJob
from compare.worker.rank import sweep_group

NEEDED = {"float32", "none"}, {"sum", "none"}
"""The dtype and the operation that no group may refuse, with every collective that it has."""


def main(group, kind):
    placement = read_placement("torchrun", os.environ)
    # By itself, NCCL would choose a network card for ranks that it takes for hosts.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "=lo")
    config = SweepConfig(
        groups=(group,),
        ranks=placement.world_size,
        device=kind,
        shares_gpus=shares_gpus(kind, placement.local_world_size),
        collectives=tuple(COLLECTIVES),
        dtypes=tuple(DTYPES),
        operations=OPERATIONS,
        begin_bytes=1 << 10,
        end_bytes=1 << 20,
        factor=1 << 10,
        iterations=1,
    )
    job = SweepJob(
        config=config,
        group=group,
        arm=config.arm_of(group),
        affinity=sorted(os.sched_getaffinity(0)),
        number=1,
        launched_at=time.time(),
    )
    result = sweep_group(job, placement, SimpleNamespace(note=lambda *_, **__: None))
    report(placement.rank, result.timings)


def shares_gpus(kind, ranks):
    """Return whether there are fewer GPUs than ranks."""
    import torch

    return kind == "cuda" and torch.cuda.device_count() < ranks


def report(rank, timings):
    """Print what is wrong and what was refused, and exit with 1 if a result is wrong or missing."""
    wrong = [f"{one}, {one.message_bytes} bytes: {one.wrong} wrong" for one in timings if one.wrong]
    refused = {str(one): one.refused for one in timings if one.refused}
    right = sum(not (one.wrong or one.refused) for one in timings)
    lines = [f"{right} results are right, {len(wrong)} are wrong, {len(refused)} are refused.", *wrong]
    if rank == 0:
        lines += [f"{name}: {why}" for name, why in refused.items()]
    sys.stdout.write("".join(f"rank {rank}: {line}\n" for line in lines))
    sys.stdout.flush()
    of_float32 = {
        one.collective for one in timings if one.ns and one.dtype in NEEDED[0] and one.operation in NEEDED[1]
    }
    missing = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"} - of_float32
    sys.exit(f"rank {rank}: missing {sorted(missing)}, {len(wrong)} wrong" if wrong or missing else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
