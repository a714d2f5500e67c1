"""Time MPI's collectives by Ringside's loop, under any MPI's launcher.

``mpiexec -n 2 python -m tests.bench.scripts.collectives all_reduce,all_to_all 1K 4M 4 IMB`` prints a line
for each size. So a program of the same MPI can be compared in turns. ``ringside collectives`` starts only
Open MPI. Calls are in place or not as those of the program: IMB's all-reduce is not, OSU's all-gather is.
"""

from __future__ import annotations

import statistics
import sys

import torch
from mpi4py import MPI

from backends.base import Placement
from backends.groups.mpi_group import MPIGroup
from compare.schema.collectives import SweepConfig, parse_size
from compare.schema.job import SweepJob
from compare.worker.collectives import time_size
from tests.bench.launches import BenchError


class _AsIMB(MPIGroup):
    def prepare(self, exchange):
        if exchange.collective != "all_reduce":
            return super().prepare(exchange)
        apart = exchange._replace(target=torch.zeros_like(exchange.source))
        return apart.calling(MPI.COMM_WORLD.Allreduce, apart.source.numpy(), apart.target.numpy())


class _AsOSU(MPIGroup):
    def prepare(self, exchange):
        if exchange.collective != "all_gather":
            return super().prepare(exchange)
        # What is given lies in its place, so the data of the check does as well.
        exchange.source.set_(exchange.target.chunk(self.world_size)[self.rank])
        return exchange.calling(MPI.COMM_WORLD.Allgather, MPI.IN_PLACE, exchange.target.numpy())


def main(collectives, begin, end, factor, like):
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    config = SweepConfig(
        groups=("mpi",),
        collectives=tuple(collectives.split(",")),
        begin_bytes=parse_size("begin", begin),
        end_bytes=parse_size("end", end),
        factor=int(factor),
        ranks=world.size,
    )
    job = SweepJob(
        config=config, group="mpi", arm=config.arm_of("mpi"), affinity=[], number=1, launched_at=0.0
    )
    placement = Placement(world.rank, world.rank, world.size, world.size, "here")
    group = {"IMB": _AsIMB, "OSU": _AsOSU}[like](placement, torch.device("cpu"))
    for exchange, nbytes in config.measurements:
        timing = time_size(group, exchange, nbytes, job, lambda _: None)
        faults = [(one.refused, one.wrong) for one in world.allgather(timing)]
        if any(refused or wrong for refused, wrong in faults):  # on all ranks, so that none waits
            raise BenchError(f"{exchange.collective} of {nbytes} bytes: refused and wrong elements {faults}")
        slowest = [max(ns) for ns in zip(*world.allgather(timing.ns), strict=True)]
        if world.rank == 0:
            print(exchange.collective, nbytes, statistics.median(slowest) / 1e3, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
