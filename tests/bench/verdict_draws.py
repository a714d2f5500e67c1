"""Draw how soon verdicts come, and how many differences are false.

``python -m tests.bench.verdict_draws ddp=0.06 horovod=0.18 --difference 0.1`` draws runs of these arms and of
the control. A number is the spread of an arm's turns of 0.7 s: the standard deviation of their log step time.

Every drawn run goes through the tool's own code: looks, lengths and numbers of turns, verdicts, and the end
of the time. Only the measured times are drawn. The last arm named differs by ``--difference``, all others are
equal. So without a difference, every difference found is false.
"""

from __future__ import annotations

import argparse
import math
import statistics
from multiprocessing import Pool

import msgspec
import numpy as np

from compare.analysis.budget import LEAD_SECONDS, TURN_SECONDS
from compare.analysis.figures import Figures, binomial_interval
from compare.analysis.ranking import verdicts
from compare.experiment.schedule import next_launches, plan_turns
from compare.schema.results import Interleaved
from tests.unit.factories import a_block, a_launch, a_rank, a_run

_TURN_OVERHEAD = 0.02
"""Seconds of a turn beside its steps (docs/method.md)."""


def main():
    given = _parse()
    spreads = {"none": given.control}
    spreads |= {arm: float(spread) for arm, _, spread in (named.partition("=") for named in given.spreads)}
    with Pool() as pool:
        drawn = pool.starmap(draw, [(given, spreads, seed) for seed in range(given.runs)], chunksize=20)
    for arm in drawn[0][0]:
        found = sum(kinds[arm] in {"faster", "slower"} for kinds, _, _ in drawn)
        low, high = binomial_interval(found, given.runs)
        print(f"{arm}: {found / given.runs:.1%} [{low:.1%}, {high:.1%}] called different")
    wrong = sum(any(kind in {"faster", "slower"} for kind in kinds.values()) for kinds, _, _ in drawn)
    low, high = binomial_interval(wrong, given.runs)
    print(f"any: {wrong / given.runs:.1%} [{low:.1%}, {high:.1%}]")
    rounds, seconds = (statistics.fmean(column) for column in list(zip(*drawn, strict=True))[1:])
    print(f"{rounds:.1f} rounds in {seconds:.0f} s, on average")


def draw(given, spreads, seed):
    """Draw one run; return the kind of each verdict, its rounds and its seconds."""
    random = np.random.default_rng(seed)
    arms = list(spreads)
    run = a_run(
        {arm: [] for arm in arms},
        launches=[],
        complete=False,
        config={"rounds": 10_000, "settle_seconds": given.seconds, "seed": int(seed)},
        interleaved=Interleaved(mode="blocks"),
    )
    now = 0.0
    while planned := next_launches(run):
        turns = plan_turns(run, planned)
        took = given.start + sum(turn.seconds + _TURN_OVERHEAD for turn in turns)
        launches = []
        for index, one in enumerate(planned):
            arm = one.arm.label
            mean = math.log1p(given.difference) if arm == arms[-1] else 0.0
            mean += random.normal(0.0, given.launches)
            own = [turn for turn in turns if turn.arm == index]
            launches.append(_launch(random, one, own, mean, spreads[arm]))
        share = took / len(launches)
        launches = [
            msgspec.structs.replace(launch, started_at=now + share * i, seconds=share)
            for i, launch in enumerate(launches)
        ]
        now += took
        run = msgspec.structs.replace(run, launches=[*run.launches, *launches])
    run = msgspec.structs.replace(run, complete=True)
    found = verdicts(Figures(run), run.config.baseline)
    return {arm: verdict.kind for arm, verdict in found.items()}, len(run.launches) // len(arms), now


def _launch(random, planned, turns, mean, spread):
    """Draw one launch; ``spread`` is that of a turn of `TURN_SECONDS`."""
    blocks = []
    for turn in turns:
        timed = turn.seconds - LEAD_SECONDS
        of_turn = spread * math.sqrt((TURN_SECONDS - LEAD_SECONDS) / timed)
        step = math.exp(mean + of_turn * random.normal()) * 1e-3
        steps = max(1, round(timed / 1e-3))
        blocks.append(a_block(1.0, turn=turn.number, steps=steps, wall_ns=round(steps * step * 1e9)))
    ranks = [a_rank(0, blocks=blocks)]
    return a_launch(planned.arm.label, planned.round, number=planned.number, ranks=ranks)


def _parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spreads", nargs="+", help="ARM=SPREAD, the baseline first")
    parser.add_argument("--control", type=float, default=0.05, help="spread of the control's turns")
    parser.add_argument("--launches", type=float, default=0.0, help="spread of launches, beyond their turns")
    parser.add_argument("--start", type=float, default=0.0, help="seconds of a round without its turns")
    parser.add_argument("--difference", type=float, default=0.0, help="of the last arm, as a share")
    parser.add_argument("--seconds", type=float, default=300.0, help="time for rounds")
    parser.add_argument("--runs", type=int, default=4000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
