"""Test the proof of more ranks than it takes shards: what it costs, and what it still finds.

The ranks are threads of this process, which average through memory.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from backends import base
from compare.analysis.parity import check_gates
from compare.schema.arms import parse_arm
from compare.worker.mnist import MnistTask
from compare.worker.parity import Proof
from compare.worker.shards import copy_tensors
from compare.worker.task import shards_in_proof
from compare.worker.watchdog import PassTimer
from tests.unit.factories import a_config, a_rank

RANKS = 16
WATCHDOG = SimpleNamespace(note=lambda *_, **__: None, stall_seconds=30.0)


class Threads:
    """What the ranks of one test share."""

    def __init__(self, ranks):
        self.barrier = threading.Barrier(ranks)
        self.given = [None] * ranks

    def group(self, rank):
        return SimpleNamespace(
            rank=rank, world_size=len(self.given), device=torch.device("cpu"), barrier=self.barrier.wait
        )

    def all(self, rank, tensors):
        """Return the tensors of every rank, in the order of ranks."""
        self.given[rank] = [tensor.detach().clone() for tensor in tensors]
        self.barrier.wait()
        given = [*self.given]
        self.barrier.wait()
        return given


def replica_of(threads, rank, choose):
    """Return the class of a replica that averages what ``choose`` makes of all ranks' gradients."""

    class Averages(base.Replica):
        def __init__(self, model, make_optimizer):
            super().__init__(model, make_optimizer, threads.group(rank), {})
            # Threads seed one generator, so their models may differ at first.
            copy_tensors(threads.all(rank, self.parameters)[0], self.parameters)

        def sync(self):
            given = choose(threads.all(rank, [p.grad for p in self.model.parameters()]))
            for parameter, gradients in zip(self.model.parameters(), zip(*given, strict=True), strict=True):
                parameter.grad.copy_(sum(gradients) / len(given))

    return Averages


def proven(choose=lambda given: given, ranks=RANKS):
    """Return each rank's pass of a proof in float64."""
    generator = torch.Generator().manual_seed(5)
    data = torch.randn(200, 784, generator=generator), torch.randint(10, (200,), generator=generator)
    threads = Threads(ranks)

    def prove(rank):
        group = threads.group(rank)
        task = MnistTask(
            a_config("ddp", model="mlp:784-12-10", ranks=ranks, batch_size_per_rank=1, seed=3), None, *data
        )
        proof = Proof(
            replica_of(threads, rank, choose),
            task.for_proof("float64"),
            "float64",
            PassTimer(WATCHDOG, group),
            compares=rank == 0,
        )
        return proof.take()

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(prove, range(ranks)))


def found_in(passes):
    """Return what the gate of these passes found."""
    ranks = [a_rank(rank, parity=[taken]) for rank, taken in enumerate(passes)]
    (gate,) = [gate for gate in check_gates(parse_arm("ddp"), ranks) if gate.name == "float64"]
    assert gate.outcome == "failed"
    return gate.found


@pytest.mark.parametrize(
    ("ranks", "shards"),
    [(1, 1), (8, 8), (12, 12), (64, 8), (512, 8), (100, 10), (34, 17), (124, 31), (61, 61)],
)
def test_proof_takes_few_shards_of_many_ranks(ranks, shards):
    assert shards_in_proof(ranks) == shards
    task = MnistTask(a_config("ddp", ranks=ranks), None, *[torch.zeros(0)] * 2).for_proof("float64")
    taken = task.shards_of(ranks)
    assert {taken.count(shard) for shard in range(shards)} == {ranks // shards}
    assert taken[0] == 0
    if ranks > shards:
        hosts = [taken[first : first + shards] for first in range(0, ranks, shards)]
        assert len({tuple(sorted(host)) for host in hosts}) > 1, "no host has the batches of another"


def test_proof_of_many_ranks_passes_and_says_what_it_leaves_open():
    passes = proven()
    assert all(taken.is_exact and taken.wrong is None for taken in passes)
    assert (passes[0].shards, passes[0].summands) == (8, RANKS)
    assert passes[0].untold == {"alone": [], "sum": [], "none": []}


def without(rank):
    def choose(given):
        given[rank] = [torch.zeros_like(tensor) for tensor in given[rank]]
        return given

    return choose


def test_proof_of_many_ranks_names_the_batch_mates_of_a_missing_rank():
    passes = proven(without(5))
    mates = ", ".join(map(str, passes[0].ranks_of(passes[0].shard_of_rank[5])))
    assert f"missing from the mean, of 1 of ranks {mates}: these skip, or send zeros." in found_in(passes)


def test_proof_of_many_ranks_finds_one_in_place_of_another():
    shards = proven()[0].shard_of_rank
    other = next(rank for rank in range(RANKS) if shards[rank] != shards[5])

    def choose(given):
        return [given[other] if rank == 5 else own for rank, own in enumerate(given)]

    assert "are in it again, of 1 of ranks" in found_in(proven(choose))


def test_proof_of_many_ranks_finds_one_host_in_place_of_another():
    def choose(given):
        return [*given[:8], *given[:8]]

    assert "Gradients are missing from the mean" in found_in(proven(choose))


def test_proof_of_many_ranks_finds_a_sum():
    def choose(given):
        return [[RANKS * tensor for tensor in own] for own in given]

    assert f"It is {RANKS} times the right one: a sum in place of the mean" in found_in(proven(choose))
