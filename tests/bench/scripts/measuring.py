"""The training loop with the product's measuring in it, and without."""

from __future__ import annotations

import faulthandler
import sys
from functools import partial
from pathlib import Path

from compare.guard import Guard
from compare.job import LaunchFiles
from compare.rank import _timed_blocks
from compare.train import train
from tests.bench.scripts import group as ranks
from tests.bench.scripts import palindrome

_STALL_SECONDS = 30


def main(folder, out, label, model, steps, palindromes):
    group = ranks.join(label)
    replica, batches = ranks.replica_of(label, group, model, ranks.images(folder))
    guard = Guard(LaunchFiles(Path(out)), group.placement, _STALL_SECONDS)
    bare = partial(train, replica, batches)

    def reported(steps):
        """Train block by block, as a rank does: clock, barrier, note of progress, watchdog."""
        blocks = _timed_blocks(replica, batches, group, range(steps), guard, step_seconds=1.0)
        return sum(block.wall_ns for block in blocks)

    def whole(steps):
        reported(steps)  # what it returns is dropped: all of it is to count

    # "again" does the very same as "bare": how different two things look that do not differ.
    arms = {"bare": bare, "again": bare, "reported": reported, "whole": whole}
    counts = dict.fromkeys(arms, int(steps))
    palindrome.write(out, group.rank, palindrome.measure(arms, counts, int(palindromes), group.barrier))
    faulthandler.cancel_dump_traceback_later()
    group.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
