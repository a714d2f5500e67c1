"""Judge an A/A test: how often do two equal arms seem different?

``compare aa`` runs one arm under two names, as any run. Its rounds are cut into comparisons, and each is
judged like the verdicts of a run.
"""

from __future__ import annotations

from functools import partial

import msgspec

from compare.analysis.looks import FIRST_LOOK, Look, planned_looks
from compare.analysis.ranking import log_ratios
from compare.analysis.simulate import SimulatedRate, binomial_interval, simulate_aa
from compare.analysis.step_times import step_seconds
from compare.analysis.uneven import withhold
from compare.analysis.verdict import Verdict, judge
from compare.schema.arms import Arm
from compare.schema.results import Run

EXPERIMENTS = 10_000
_FEWEST_RECORDED = 30
"""Fewest rounds to resample; fewer describe a few launches only."""
_MOST_LOOKS = 20
"""Most rounds of a simulated run under a budget."""


class AAResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an A/A test."""

    arm: str
    recorded: int
    """Rounds that were launched."""
    rounds_each: int
    """Rounds of each comparison."""
    verdicts: list[Verdict]
    """One for each comparison."""
    false_differences: int
    rate: float
    low: float
    """Lower end of the rate's 95 % interval (Clopper & Pearson)."""
    high: float
    fixed: SimulatedRate | None
    """Simulated comparisons of the same length; None for too few rounds."""
    sequential: SimulatedRate | None
    """The same with the looks of a run of limited time, until it is settled."""


def twins(arm: Arm) -> tuple[Arm, Arm]:
    """Return one arm under two names."""
    first, second = (msgspec.structs.replace(arm, twin=twin) for twin in (1, 2))
    return first, second


def assess(run: Run) -> AAResult | None:
    """Judge the complete comparisons of an A/A test; None for another run."""
    if run.config.comparisons is None:
        return None
    first, second = run.config.arms
    ratios = log_ratios(run, second, first)
    each = run.config.rounds // run.config.comparisons
    found = [_judge(run, ratios, range(at, at + each)) for at in range(0, len(ratios) - each + 1, each)]
    if not found:
        return None
    false = sum(verdict.kind in {"faster", "slower"} for verdict in found)
    planned = min(_MOST_LOOKS, len(ratios))
    low, high = binomial_interval(false, len(found))
    return AAResult(
        arm=msgspec.structs.replace(first, twin=0).label,
        recorded=len(ratios),
        rounds_each=each,
        verdicts=found,
        false_differences=false,
        rate=false / len(found),
        low=low,
        high=high,
        fixed=_simulated(run, [Look(each, each)]),
        sequential=_simulated(run, planned_looks(planned)),
    )


def _judge(run: Run, ratios: list[float], rounds: range) -> Verdict:
    """Judge rounds, counted from 0, as a run of their own."""
    first, second = run.config.arms
    launches = [launch for launch in run.launches if launch.round - 1 in rounds]
    own = {second.label: ratios[rounds.start : rounds.stop]}
    accept = partial(withhold, msgspec.structs.replace(run, launches=launches), first.label)
    return judge(own, fewest=FIRST_LOOK, accept=accept)[second.label]


def _simulated(run: Run, looks: list[Look]) -> SimulatedRate | None:
    both = [
        [step_seconds(la) for la in run.launches if la.round == r] for r in range(1, run.config.rounds + 1)
    ]
    rounds = [times for times in both if len(times) == len(run.config.arms)]
    if not looks or len(rounds) < max(_FEWEST_RECORDED, looks[-1].rounds):
        return None
    return simulate_aa(rounds, looks, experiments=EXPERIMENTS, seed=run.config.seed)
