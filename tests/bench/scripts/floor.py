"""Measure an all-reduce through shared memory, and one rank's plain addition."""

from __future__ import annotations

import sys

import torch
from torch import nn

from tests.bench.scripts import group as ranks
from tests.bench.scripts import palindrome


def main(out, seed, megabytes, calls, palindromes):
    from backends.shared_memory.sum import SharedSum

    group = ranks.join("manual:mode=shared_memory")
    parameter = nn.Parameter(torch.zeros(int(float(megabytes) * 1e6 / 4)))
    shared = SharedSum([parameter], group)
    gradient = torch.rand_like(parameter)
    other, result = torch.rand_like(gradient), torch.zeros_like(gradient)

    def all_reduce(times):
        for _ in range(times):
            shared.reduce([gradient])

    def add(times):
        # The other ranks wait in the barrier, so this rank alone uses the memory.
        for _ in range(times if group.rank == 0 else 0):
            torch.add(gradient.detach(), other, out=result)

    arms = {"all_reduce": all_reduce, "add": add}
    counts = dict.fromkeys(arms, int(calls))
    taken = palindrome.measure(arms, counts, int(palindromes), group.barrier, seed=seed)
    palindrome.write(out, group.rank, taken)
    group.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
