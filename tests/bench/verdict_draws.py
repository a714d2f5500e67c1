"""Draw how soon verdicts come, and how many differences are false.

``python -m tests.bench.verdict_draws ddp=0.06 horovod=0.18 --difference 0.1`` draws runs of these arms and of
the control. A number is the spread of an arm's turns of 0.7 s: the standard deviation of their log step time.
``--run FOLDER`` takes spreads, turns and times from a recorded run instead: its own turns are drawn again, as
residuals from the means of their arm and pass.

Every drawn run goes through the tool's own code: looks, lengths and numbers of turns, verdicts, and the end
of the time. Only the measured times are drawn. The last arm named differs by ``--difference``, all others are
equal. So without a difference, every difference found is false.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import msgspec
import numpy as np

from compare.analysis.budget import elapsed_seconds
from compare.analysis.estimate import binomial_interval
from compare.analysis.figures import Figures, LaunchFigures
from compare.analysis.noise import cohorts, launch_variance, turn_spreads
from compare.analysis.ranking import verdicts
from compare.experiment import schedule
from compare.experiment.schedule import LEAD_SECONDS, TURN_SECONDS, next_launches, plan_turns
from compare.schema.results import Interleaved
from compare.schema.store import read_run
from tests.unit.factories import a_block, a_launch, a_rank, a_run

_TURN_OVERHEAD = 0.02
"""Seconds of a turn beside its steps (docs/method.md)."""


@dataclass(frozen=True)
class Machine:
    """What is drawn from."""

    spreads: dict[str, float]
    """Standard deviation of ln(step time) of a turn of `TURN_SECONDS`, by arm."""
    residuals: dict[str, list[float]]
    """Standardised residuals of recorded turns; empty for normal ones."""
    launches: float
    """Standard deviation of an arm's launches, beyond their turns."""
    start_seconds: float
    """Time of a round without its turns."""


def main():
    given = _parse()
    machine = _recorded(given) if given.run else _described(given)
    print(machine.spreads, f"launches {machine.launches:.3f}, start {machine.start_seconds:.1f} s")
    jobs = [(machine, given.difference, given.seconds, seed) for seed in range(given.runs)]
    with Pool() as pool:
        drawn = pool.starmap(draw, jobs, chunksize=20)
    for arm in drawn[0][0]:
        found = sum(kinds[arm] in {"faster", "slower"} for kinds, _, _ in drawn)
        low, high = binomial_interval(found, given.runs)
        print(f"{arm}: {found / given.runs:.1%} [{low:.1%}, {high:.1%}] called different")
    wrong = sum(any(kind in {"faster", "slower"} for kind in kinds.values()) for kinds, _, _ in drawn)
    low, high = binomial_interval(wrong, given.runs)
    print(f"any: {wrong / given.runs:.1%} [{low:.1%}, {high:.1%}]")
    rounds, seconds = (statistics.fmean(column) for column in list(zip(*drawn, strict=True))[1:])
    print(f"{rounds:.1f} rounds in {seconds:.0f} s, on average")


def draw(machine, difference, limit_seconds, seed):
    """Draw one run; return the kind of each verdict, its rounds and its seconds."""
    random = np.random.default_rng(seed)
    arms = list(machine.spreads)
    run = a_run(
        {arm: [] for arm in arms},
        launches=[],
        complete=False,
        config={"rounds": 10_000, "settle_seconds": limit_seconds, "seed": int(seed)},
        interleaved=Interleaved(mode="blocks"),
    )
    now = 0.0
    while planned := next_launches(run):
        turns = plan_turns(run, planned)
        took = machine.start_seconds + sum(turn.seconds + _TURN_OVERHEAD for turn in turns)
        launches = [
            _launch(machine, random, one, [t for t in turns if t.arm == index], difference, arms[-1])
            for index, one in enumerate(planned)
        ]
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


def _launch(machine, random, planned, turns, difference, different):
    arm = planned.arm.label
    mean = (math.log1p(difference) if arm == different else 0.0) + random.normal(0.0, machine.launches)
    blocks = []
    for turn in turns:
        timed = turn.seconds - LEAD_SECONDS
        noise = random.choice(machine.residuals[arm]) if machine.residuals else random.normal()
        spread = machine.spreads[arm] * math.sqrt((TURN_SECONDS - LEAD_SECONDS) / timed)
        step = math.exp(mean + spread * noise) * 1e-3
        steps = max(1, round(timed / 1e-3))
        blocks.append(a_block(1.0, turn=turn.number, steps=steps, wall_ns=round(steps * step * 1e9)))
    ranks = [a_rank(0, blocks=blocks)]
    return a_launch(arm, planned.round, number=planned.number, ranks=ranks)


def _described(given):
    named = dict(pair.split("=") for pair in given.spreads)
    spreads = {arm: float(spread) for arm, spread in named.items()}
    return Machine({"none": given.control} | spreads, {}, given.launches, given.start)


def _recorded(given):
    run = read_run(Path(given.run))
    arms = [arm.label for arm in run.config.arms]
    scale = math.sqrt(TURN_SECONDS - LEAD_SECONDS)
    spreads = {arm: spread / scale for arm, spread in turn_spreads(run).items()}
    residuals = {arm: [] for arm in arms}
    for launches in cohorts(run):
        times = {la.arm: LaunchFigures(la).turns for la in launches}
        turns = sorted(set.intersection(*map(set, times.values())))
        logs = np.log([[times[arm][turn].seconds for turn in turns] for arm in arms])
        rest = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
        for arm, own in zip(arms, rest, strict=True):
            residuals[arm] += list(own)
    residuals = {arm: list((np.array(own) - np.mean(own)) / np.std(own)) for arm, own in residuals.items()}
    rivals = [arm.label for arm in run.config.rivals]
    between = statistics.fmean(launch_variance(run, arm, run.config.baseline) for arm in rivals)
    of_launches = math.sqrt(max(0.0, between) / 2)
    passes = schedule._passes(run) * schedule._pass_seconds(run)
    start = given.start or (elapsed_seconds(run) - passes) / len(cohorts(run))
    keep = [arm for arm in arms if not given.spreads or arm in given.spreads]
    return Machine({arm: spreads[arm] for arm in keep}, residuals, of_launches, start)


def _parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spreads", nargs="*", help="ARM=SPREAD, the baseline first; with --run, arms to keep")
    parser.add_argument("--run", help="folder of a recorded run in turns")
    parser.add_argument("--control", type=float, default=0.05, help="spread of the control's turns")
    parser.add_argument("--launches", type=float, default=0.0, help="spread of launches, beyond their turns")
    parser.add_argument("--start", type=float, default=0.0, help="seconds of a round without its turns")
    parser.add_argument("--difference", type=float, default=0.0, help="of the last arm, as a share")
    parser.add_argument("--seconds", type=float, default=300.0, help="time for rounds")
    parser.add_argument("--runs", type=int, default=4000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
