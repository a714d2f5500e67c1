"""Build the results of ``ringside collectives``, as factories do for runs."""

from __future__ import annotations

import msgspec

from compare.schema.collectives import CollectivesRun, RankSweep, SizeTiming, SweepConfig, SweepLaunch
from compare.schema.hosts import local_host


def a_sweep_config(*groups, **changes):
    """Return a valid config of some groups, or of Gloo and MPI."""
    return SweepConfig(groups=groups or ("gloo", "mpi"), **{"end_bytes": 16, "rounds": 1} | changes)


def a_sweep_launch(config, group, number=1, ns=(1000, 2000, 3000), of_size=None, **of_timings):
    """Return a launch; rank 1 takes twice as long as rank 0.

    ``of_size`` takes an exchange, a size and a rank, and returns further fields of a timing.
    """
    ranks = []
    for rank in range(config.ranks):
        own = [nanoseconds * (rank + 1) for nanoseconds in ns]
        timings = [
            SizeTiming(
                **msgspec.structs.asdict(exchange)
                | {"message_bytes": size, "calls": 1, "ns": own}
                | of_timings
                | (of_size(exchange, size, rank) if of_size else {})
            )
            for exchange, size in config.measurements
        ]
        ranks.append(
            RankSweep(rank=rank, local_rank=rank, host="localhost", pid=1, timings=timings, attestation={})
        )
    return SweepLaunch(
        number=number,
        round=number,
        arm=config.arm_of(group).label,
        group=group,
        launcher="torchrun",
        argv=[["torchrun"]],
        environment={},
        started_at=0.0,
        seconds=1.0,
        ranks=ranks,
    )


def a_collectives_run(config, launches, **changes):
    """Return a complete run with these launches."""
    fields = {
        "ringside_version": "1",
        "started_at": "2026-11-25T08:00:00+00:00",
        "command": ["ringside", "collectives"],
        "config": config,
        "hosts": [local_host(config.ranks)],
        "cores_by_host": [config.ranks],
        "launches": launches,
        "complete": True,
    }
    return CollectivesRun(**fields | changes)
