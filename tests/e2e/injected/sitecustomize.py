"""Change what ranks do, as ``injected.json`` describes."""

import json
import time
from collections import Counter
from itertools import chain, cycle, repeat
from pathlib import Path

from injecting import change_when_imported

_INJECTED = Path(__file__).with_name("injected.json")


class _Delay:
    """A delay in every other block of a mode.

    In the block with timed phases it is in every other step. So its effect is measured within one process and
    one second, also on a busy machine.
    """

    def __init__(self, seconds):
        from compare.worker.blocks import BlockTrainer, settling_steps

        self._seconds = seconds
        self._steps = repeat(False)
        self._blocks = Counter()
        timed_block = BlockTrainer.timed_block

        def in_turns(turns, plan):
            if plan.phased:
                # The steps in which a block settles are not timed.
                self._steps = chain(repeat(False, settling_steps(plan.steps, 1)), cycle([False, True]))
            else:
                self._steps = repeat(self._blocks[plan.mode] % 2 == 1)
                self._blocks[plan.mode] += 1
            try:
                return timed_block(turns, plan)
            finally:
                self._steps = repeat(False)

        BlockTrainer.timed_block = in_turns

    def before(self, function):
        def delayed(*arguments, **named):
            if next(self._steps):
                # It works instead of sleeping: a sleep would free the core for others.
                end = time.perf_counter() + self._seconds
                while time.perf_counter() < end:
                    pass
            return function(*arguments, **named)

        return delayed


def _slow_sync(module, job, placement, seconds):
    """Slow down every rank's synchronisation; control and reference have none."""
    import backends

    if job.arm.traits.synchronises:
        _, replica = backends.load(job.arm.backend, job.arm.options)
        replica.sync = _Delay(seconds).before(replica.sync)


def _slow_computing(module, job, placement, seconds):
    """Slow down the last rank's computing: arm, reference and control."""
    from compare.worker import mnist

    if placement.rank == placement.world_size - 1:
        mnist.loss_function = _Delay(seconds).before(mnist.loss_function)


def _no_reference(module, job, placement, seconds):
    """Train the arm without its reference."""
    trainer = module.BlockTrainer
    module.make_reference = lambda *_: None
    module.BlockTrainer = lambda job, sides, *others, **named: trainer(
        job, {"training": sides["training"]}, *others, **named
    )


_CHANGES = {"slow sync": _slow_sync, "slow computing": _slow_computing, "no reference": _no_reference}


def _change(module):
    injected = json.loads(_INJECTED.read_text())
    run = module.run

    def changed(job, placement, watchdog):
        _CHANGES[injected["change"]](module, job, placement, injected["seconds"])
        return run(job, placement, watchdog)

    module.run = changed


change_when_imported("compare.worker.rank", _change)
