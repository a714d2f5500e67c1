"""Compare two runs by the ratios within each of them.

Machines change between two runs, so milliseconds say little. The cost of an arm is its step time over that of
the control in the same round: T_S / T_0. Without a control in both runs, the baseline takes its place. One
round gives one value. The runs are independent, so `judge_between` compares their means. That describes
changes and decides nothing, because no interval covers the state of the machine between two runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from compare.analysis.budget import cores_of, is_oversubscribed
from compare.analysis.change import Change, Changes, differing, judge_between, versions_of, weaknesses
from compare.analysis.estimate import Estimate
from compare.analysis.figures import Figures
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.ranking import log_ratios
from compare.errors import ConditionsError, OutputError
from compare.schema.arms import CONTROL, Arm
from compare.schema.environment import library_settings
from compare.schema.results import RankResult, Run

FREE_SETTINGS = {
    *("arms", "baseline", "rounds", "interleave", "budget_seconds", "settle_seconds", "comparisons"),
    *("max_reruns", "seed", "launch_timeout_seconds", "stall_seconds", "against", "slower_limit"),
}
"""Settings that may differ between the runs, because they do not influence a step time."""


def diff(old: Run, new: Run, names: tuple[str, str], *, force: bool = False) -> Changes:
    """Compare what synchronising costs in two runs; ``names`` are those of the old and the new run.

    With ``force``, unlike runs are compared too, and the result lists in which settings they differ. Every
    change is unresolved if threads outnumber the cores in either run.

    Raises:
        ConditionsError: the runs are unlike, and ``force`` is not set.
        OutputError: the runs share no arm to compare, or neither the control nor the baseline.
    """
    figures = Figures(old), Figures(new)
    reference, arms = _in_common(*figures)
    ranks = [(arm.label, old.of(arm)[0].ranks[0], new.of(arm)[0].ranks[0]) for arm in (reference, *arms)]
    unlike = differing(
        [
            (_conditions(old), _conditions(new)),
            *((_conditions_of_rank(before), _conditions_of_rank(after)) for _, before, after in ranks),
        ]
    )
    if unlike and not force:
        raise ConditionsError(
            "The two runs are unlike, so their difference would mean nothing.",
            found="\n".join(
                f"{one.what}: {one.old} in {names[0]}, {one.new} in {names[1]}" for one in unlike
            ),
            remedy="Repeat one of them with the settings of the other. With --force they are compared "
            "anyway, and every output states it.",
        )
    costs = [{arm.label: _costs(side, arm, reference) for arm in arms} for side in figures]
    found = judge_between(*costs)
    ranked = not is_oversubscribed(old) and not is_oversubscribed(new)
    changes = [
        msgspec.structs.replace(
            change if ranked else msgspec.structs.replace(change, kind="unresolved"),
            old=Estimate.of(costs[0][arm]).exponential(),
            new=Estimate.of(costs[1][arm]).exponential(),
        )
        for arm, change in found.items()
    ]
    return Changes(
        command="diff",
        old=names[0],
        new=names[1],
        reference=reference.label,
        changes=changes,
        unlike=unlike,
        changed=differing(
            [
                (_sources(old), _sources(new)),
                *((versions_of(arm, before), versions_of(arm, after)) for arm, before, after in ranks),
            ]
        ),
        notes=list(_notes(*figures, names, changes)),
    )


def _costs(figures: Figures, arm: Arm, reference: Arm) -> list[float]:
    """Return ln(the arm's step time / the reference arm's) of every round that both have."""
    return [-ratio for ratio in log_ratios(figures, arm.label, reference.label)]


def _in_common(old: Figures, new: Figures) -> tuple[Arm, list[Arm]]:
    """Return the reference arm, whose step times divide the others', and the arms to compare.

    Raises:
        OutputError: both runs do not share a reference arm and another arm that synchronises.
    """
    there = {arm.label: arm for arm in old.run.config.arms if old.run.of(arm) and new.run.of(arm)}
    baseline = old.run.config.baseline if old.run.config.baseline == new.run.config.baseline else ""
    reference = there.get(CONTROL) or there.get(baseline)
    arms = [
        arm
        for arm in there.values()
        if reference
        and arm != reference
        and arm.traits.synchronises
        and all(_costs(side, arm, reference) for side in (old, new))
    ]
    if reference is None or not arms:
        raise OutputError(
            "The two runs have no arm in common that can be compared.",
            found=f"{_labels(old.run)} in one, {_labels(new.run)} in the other.",
            remedy="Run the same arm in both, together with the control `none` or the same baseline.",
        )
    return reference, arms


def _labels(run: Run) -> str:
    return ", ".join(arm.label for arm in run.config.arms if run.of(arm)) or "no finished launch"


# ---- what differs ----


def _conditions(run: Run) -> dict[str, Any]:
    """Return the settings and the facts about the hosts that must be equal in both runs, by name."""
    settings = {name: getattr(run.config, name) for name in run.config.__struct_fields__}
    return {name: value for name, value in settings.items() if name not in FREE_SETTINGS} | {
        "data set": run.dataset.name,
        "ranks of each host": slots_of(run),
        "cores of each host": cores_of(run),
        "rehearsed link": run.network.rehearsed,
        "interleaved": run.interleaved.mode,
    }


def slots_of(run: Run) -> list[int]:
    """Return the number of ranks on each host, in the run's order of hosts."""
    return [host.slots for host in run.hosts]


def _conditions_of_rank(rank: RankResult) -> dict[str, Any]:
    """Return the device and the library settings that a rank attests, with those of the allocator."""
    found = rank.attestation
    variables = {**(found.get("malloc") or {}), **(found.get("environment") or {})}
    return {"name of the device": found.get("device")} | library_settings(variables)


def _sources(run: Run) -> dict[str, Any]:
    return {"ringside": run.ringside_version, "sources of the workload": run.dataset.sha256}


def _notes(old: Figures, new: Figures, names: tuple[str, str], changes: list[Change]) -> Iterator[str]:
    """Yield one sentence for each fact that weakens the comparison."""
    for side, name in ((old, names[0]), (new, names[1])):
        yield from (f"{name}: {phrase}." for phrase in weaknesses(side))
    few = [change.arm for change in changes if min(change.rounds) < FIRST_LOOK]
    if few:
        yield f"No change is named before {FIRST_LOOK} rounds in both runs: {', '.join(few)}."
    for run, other, name in ((old.run, new.run, names[0]), (new.run, old.run, names[1])):
        only = [arm.label for arm in run.config.arms if run.of(arm) and not other.of(arm)]
        if only:
            yield f"Only in {name}: {', '.join(only)}."
