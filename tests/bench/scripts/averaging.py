"""Measure several arms of one process group in turns."""

from __future__ import annotations

import random
import sys
from functools import partial

from compare.worker.loop import train
from tests.bench.averaging import IN_STEP
from tests.bench.scripts import group as ranks
from tests.bench.scripts import palindrome


def main(folder, out, seed, model, steps, palindromes, *labels):
    group = ranks.join(labels[0])
    tensors = ranks.images(folder)
    # The order of creation decides the memory layout, so it is shuffled.
    labels = random.Random(f"{seed}, made").sample(labels, len(labels))
    arms = {label: partial(train, *_replica(label, group, model, tensors)) for label in labels}
    counts = dict.fromkeys(arms, int(steps))
    taken = palindrome.measure(arms, counts, int(palindromes), group.barrier, seed=seed, settling=1)
    palindrome.write(out, group.rank, taken)
    group.leave()


def _replica(label, group, model, tensors):
    if label != IN_STEP:
        return ranks.replica_of(label, group, model, tensors)
    replica, batches = ranks.replica_of("manual:mode=shared_memory", group, model, tensors)
    replica.reducer.reduce = replica.reducer.shared._meeting.meet
    return replica, batches


if __name__ == "__main__":
    main(*sys.argv[1:])
