"""Run the training loop with and without the product's measuring."""

from __future__ import annotations

import faulthandler
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from compare.schema.arms import parse_arm
from compare.schema.config import RunConfig
from compare.schema.launch_files import LaunchFiles
from compare.worker.blocks import BlockTrainer, Side
from compare.worker.loop import train
from compare.worker.mnist import classify
from compare.worker.watchdog import Watchdog
from tests.bench.scripts import group as ranks
from tests.bench.scripts import palindrome

_STALL_SECONDS = 30


def main(folder, out, seed, label, model, steps, palindromes):
    group = ranks.join(label)
    replica, batches = ranks.replica_of(label, group, model, ranks.images(folder))
    watchdog = Watchdog(LaunchFiles(Path(out)), group.placement.rank, _STALL_SECONDS)
    bare = partial(train, replica, batches, classify)

    reference = Side(*ranks.replica_of("none", group, model, ranks.images(folder)), classify)

    def turns(steps, **sides):
        """Train block by block, as a rank does: clock, progress records, watchdog."""
        arm = parse_arm(label)
        config = RunConfig(arms=(arm,), ranks=group.world_size, steps=steps + 1, warmup_steps=0)
        job = SimpleNamespace(config=config, arm=arm, number=int(seed))
        sides = {"training": Side(replica, batches, classify), **sides}
        trainer = BlockTrainer(job, sides, group, watchdog, step_seconds=0.001, trained=lambda: None)
        return list(trainer.blocks())

    def reported(steps):
        """Take turns with a reference; the product reports the training's time only."""
        blocks = turns(steps, reference=reference)
        timed = [block for block in blocks if block.mode == "training" and not block.phases]
        return sum(block.wall_ns for block in timed) / sum(block.steps for block in timed) * steps

    def whole(steps):
        turns(steps)  # it returns nothing, so that the caller times all of it

    # "again" does the same as "bare": their difference is noise.
    arms = {"bare": bare, "again": bare, "reported": reported, "whole": whole}
    counts = dict.fromkeys(arms, int(steps))
    taken = palindrome.measure(arms, counts, int(palindromes), group.barrier, seed=seed, settling=1)
    palindrome.write(out, group.rank, taken)
    faulthandler.cancel_dump_traceback_later()
    group.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
