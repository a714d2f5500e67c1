"""Withhold the verdicts that uneven load may explain.

Another program may run while one arm trains, and rest while its rival does. No timing can tell that from a
slower arm. But the kernel counts the busy time of the CPUs in the turns of every arm.
"""

from __future__ import annotations

import math
import statistics

import msgspec

from compare.analysis.step_times import other_cpu_load
from compare.analysis.verdict import Verdict
from compare.schema.arms import Arm
from compare.schema.results import Launch, Run

UNEVEN_LIMIT = 0.05
"""Difference in other load of two arms, a share of CPUs.

On a quiet machine it is less: the kernel counts busy time in ticks.
"""
SLOWDOWN = 3.0
"""Steps that one busy core is taken to add to a step.

All ranks wait for the one that shares its core. It is more than was seen. On two cores, in four tries,
loops added 1.2 to 2.3 steps to those of two spinning ranks. They added 0.4 to one of ``ddp``.
"""


def withhold(run: Run, baseline: str, name: str, verdict: Verdict) -> Verdict:
    """Leave a verdict open if uneven load may explain it.

    The load of both arms is compared over the common rounds that the verdict has. A difference stands if the
    slower arm has less load. It stands too if its whole interval exceeds what the load can do.
    """
    if verdict.kind == "unresolved":
        return verdict
    arms = {arm.label: arm for arm in run.config.arms}
    own, other = _by_round(run, arms[name]), _by_round(run, arms[baseline])
    rounds = sorted(set(own) & set(other))[: verdict.n]
    beside = statistics.fmean(other_cpu_load(own[r]) for r in rounds)
    beside_baseline = statistics.fmean(other_cpu_load(other[r]) for r in rounds)
    more = beside - beside_baseline
    explained = math.log1p(SLOWDOWN * abs(more) * _cpus(own[rounds[0]]))
    ends = filter(None, (verdict.low, verdict.speed_ratio, verdict.high))
    slower_by = min(-math.log(end) * math.copysign(1, more) for end in ends)
    stands = verdict.kind != "equivalent" and not 0 < slower_by <= explained
    if abs(more) <= UNEVEN_LIMIT or stands:
        return verdict
    return msgspec.structs.replace(
        verdict,
        kind="unresolved",
        settled_after=None,
        rounds_to_settle=None,
        uneven_load=(beside, beside_baseline),
    )


def _by_round(run: Run, arm: Arm) -> dict[int, Launch]:
    return {launch.round: launch for launch in run.of(arm)}


def _cpus(launch: Launch) -> int:
    return max((rank.machine.cpus for rank in launch.ranks if rank.machine), default=1)
