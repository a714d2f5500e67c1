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
"""Most that one busy core adds to a step, in steps.

All ranks wait for the one that shares its core. On two cores, two spinning ranks had 1.2 to 2.3 steps added
in four tries. ``ddp`` had 0.4.
"""


def withhold(run: Run, baseline: str, found: dict[str, Verdict]) -> dict[str, Verdict]:
    """Leave the verdicts open that uneven load may explain."""
    arms = {arm.label: arm for arm in run.config.arms}
    return {name: _judge(run, arms[name], arms[baseline], verdict) for name, verdict in found.items()}


def _judge(run: Run, arm: Arm, baseline: Arm, verdict: Verdict) -> Verdict:
    """Compare the load of both arms over their common rounds.

    A difference stands if the slower arm has less load. It stands too if it exceeds what the load can do.
    """
    own, other = _by_round(run, arm), _by_round(run, baseline)
    rounds = sorted(set(own) & set(other))[: verdict.n]
    if verdict.kind == "unresolved" or not rounds:
        return verdict
    beside = statistics.fmean(other_cpu_load(own[r]) for r in rounds)
    beside_baseline = statistics.fmean(other_cpu_load(other[r]) for r in rounds)
    more = beside - beside_baseline
    explained = math.log1p(SLOWDOWN * abs(more) * _cpus(own[rounds[0]]))
    slower_by = -math.log(verdict.speed_ratio) * math.copysign(1, more)
    stands = verdict.kind != "equivalent" and not 0 < slower_by <= explained
    if abs(more) <= UNEVEN_LIMIT or stands:
        return verdict
    return msgspec.structs.replace(
        verdict, kind="unresolved", rounds_to_settle=None, uneven_load=(beside, beside_baseline)
    )


def _by_round(run: Run, arm: Arm) -> dict[int, Launch]:
    return {launch.round: launch for launch in run.of(arm)}


def _cpus(launch: Launch) -> int:
    return max((rank.machine.cpus for rank in launch.ranks if rank.machine), default=1)
