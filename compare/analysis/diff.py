"""Compare two runs by the ratios within each of them.

Machines change between two runs, so milliseconds say little. The cost of an arm is its step time over that of
the control in the same round: T_S / T_0. Without a control in both runs, the baseline takes its place. One
round gives one value. The runs are independent, so `judge_between` compares their means.

``diff`` describes changes and decides nothing. Two runs differ by more than what changed, and no interval
covers the state of the machine. A slower computation slows the control as well, so a ratio does not show it.
``gate`` has neither flaw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from compare.analysis.attested import transport_of
from compare.analysis.budget import is_oversubscribed, rounds_done
from compare.analysis.change import Change, Changes, Differing, judge_between
from compare.analysis.estimate import Estimate
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.ranking import log_ratios
from compare.analysis.step_times import noisy_rounds
from compare.errors import ConditionsError, OutputError
from compare.schema.arms import CONTROL, Arm
from compare.schema.environment import library_settings
from compare.schema.results import RankResult, Run

FREE_SETTINGS = {
    *("arms", "baseline", "rounds", "interleave", "budget_seconds", "settle_seconds", "comparisons"),
    *("max_reruns", "seed", "launch_timeout_seconds", "stall_seconds", "against", "slower_limit"),
}
"""Settings that may differ between the runs, because they do not influence a step time."""
ABSENT = "–"


def diff(old: Run, new: Run, names: tuple[str, str], *, force: bool = False) -> Changes:
    """Compare what synchronising costs in two runs; ``names`` are those of the old and the new run.

    With ``force``, unlike runs are compared too, and the result lists in which settings they differ. Every
    change is unresolved if threads outnumber the cores in either run.

    Raises:
        ConditionsError: the runs are unlike, and ``force`` is not set.
        OutputError: the runs share no arm to compare, or neither the control nor the baseline.
    """
    reference, arms = _in_common(old, new)
    unlike = [*_unlike(old, new), *_unlike_ranks(old, new, [reference, *arms])]
    if unlike and not force:
        raise ConditionsError(
            "The two runs are unlike, so their difference would mean nothing.",
            found="\n".join(
                f"{one.what}: {one.old} in {names[0]}, {one.new} in {names[1]}" for one in unlike
            ),
            remedy="Repeat one of them with the settings of the other. --force compares all the same, and "
            "every output states it.",
        )
    costs = [{arm.label: _costs(run, arm, reference) for arm in arms} for run in (old, new)]
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
        changed=list(_changed(old, new, [reference, *arms])),
        notes=list(_notes(old, new, names, changes)),
    )


def _costs(run: Run, arm: Arm, reference: Arm) -> list[float]:
    """Return ln(the arm's step time / the reference arm's) of every round that both have."""
    return [-ratio for ratio in log_ratios(run, arm, reference)]


def _in_common(old: Run, new: Run) -> tuple[Arm, list[Arm]]:
    """Return the reference arm, whose step times divide the others', and the arms to compare.

    Raises:
        OutputError: both runs do not share a reference arm and another arm that synchronises.
    """
    there = {arm.label: arm for arm in old.config.arms if old.of(arm) and new.of(arm)}
    baseline = old.config.baseline if old.config.baseline == new.config.baseline else ""
    reference = there.get(CONTROL) or there.get(baseline)
    arms = [
        arm
        for arm in there.values()
        if reference and arm != reference and arm.traits.synchronises and _costs(new, arm, reference)
    ]
    arms = [arm for arm in arms if reference and _costs(old, arm, reference)]
    if reference is None or not arms:
        raise OutputError(
            "The two runs have no arm in common that can be compared.",
            found=f"{_labels(old)} in one, {_labels(new)} in the other.",
            remedy="Run one arm in both, beside the control `none` or the same baseline.",
        )
    return reference, arms


def _labels(run: Run) -> str:
    return ", ".join(arm.label for arm in run.config.arms if run.of(arm)) or "no finished launch"


# ---- what differs ----


def _unlike(old: Run, new: Run) -> Iterator[Differing]:
    """List the settings and the facts about the hosts that must be equal and differ."""
    for name in old.config.__struct_fields__:
        if name not in FREE_SETTINGS:
            yield from _compare(name, getattr(old.config, name), getattr(new.config, name))
    yield from _compare("data set", old.dataset.name, new.dataset.name)
    yield from _compare("ranks of each host", slots_of(old), slots_of(new))
    yield from _compare("cores of each host", cores_of(old), cores_of(new))
    yield from _compare("rehearsed link", old.network.rehearsed, new.network.rehearsed)
    yield from _compare("interleaved", old.interleaved.mode, new.interleaved.mode)


def slots_of(run: Run) -> list[int]:
    """Return the number of ranks on each host, in the run's order of hosts."""
    return [host.slots for host in run.hosts]


def cores_of(run: Run) -> list[int]:
    """Return how many cores the ranks may use on each host, in the run's order of hosts."""
    return run.cores_by_host or [run.cores] * len(run.hosts)


def _unlike_ranks(old: Run, new: Run, arms: Iterable[Arm]) -> Iterator[Differing]:
    """List the devices and the library settings that differ, each once.

    Each arm's first launches in the two runs are compared, by what rank 0 attests.
    """
    found: dict[Differing, None] = {}
    for _, before, after in _first_ranks(old, new, arms):
        found |= dict.fromkeys(
            _compare("name of the device", before.attestation.get("device"), after.attestation.get("device"))
        )
        variables = [_variables(rank) for rank in (before, after)]
        for name in sorted({*variables[0], *variables[1]}):
            found |= dict.fromkeys(_compare(name, variables[0].get(name), variables[1].get(name)))
    yield from found


def _variables(rank: RankResult) -> dict[str, Any]:
    """Return the library settings that a rank attests, by name, with those of the allocator."""
    return library_settings(
        {**(rank.attestation.get("malloc") or {}), **(rank.attestation.get("environment") or {})}
    )


def _changed(old: Run, new: Run, arms: Iterable[Arm]) -> Iterator[Differing]:
    """List the versions, sources and transports that differ, each once."""
    yield from _compare("ringside", old.ringside_version, new.ringside_version)
    yield from _compare("sources of the workload", old.dataset.sha256, new.dataset.sha256)
    seen: set[Differing] = set()
    for arm, before, after in _first_ranks(old, new, arms):
        found = [
            *_compare("python", before.attestation.get("python"), after.attestation.get("python")),
            *_compare("torch", before.attestation.get("torch"), after.attestation.get("torch")),
            *_compare(f"transport of {arm.label}", transport_of(before), transport_of(after)),
        ]
        versions = [rank.attestation.get("group", {}).get("versions") or {} for rank in (before, after)]
        for name in sorted({*versions[0], *versions[1]} - {"torch"}):
            found += _compare(name, versions[0].get(name), versions[1].get(name))
        yield from (one for one in found if one not in seen)
        seen.update(found)


def _first_ranks(old: Run, new: Run, arms: Iterable[Arm]) -> Iterator[tuple[Arm, RankResult, RankResult]]:
    for arm in arms:
        yield arm, old.of(arm)[0].ranks[0], new.of(arm)[0].ranks[0]


def _compare(what: str, old: Any, new: Any) -> Iterator[Differing]:
    if old != new:
        yield Differing(what, _spell(old), _spell(new))


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_spell(held)}" for name, held in sorted(value.items())) or ABSENT
    if isinstance(value, (list, tuple)):
        return " ".join(map(_spell, value)) or ABSENT
    return ABSENT if value is None or value == "" else str(value)


def _notes(old: Run, new: Run, names: tuple[str, str], changes: list[Change]) -> Iterator[str]:
    """Yield one sentence for each fact that weakens the comparison."""
    for run, name in ((old, names[0]), (new, names[1])):
        noisy = noisy_rounds(run)
        if noisy:
            yield f"{name}: other programs ran in {len(noisy)} of {rounds_done(run)} rounds."
        if not run.complete:
            yield f"{name}: the run was stopped, or failed."
        if is_oversubscribed(run):
            yield f"{name}: ranks and threads outnumber the cores, so no change is named."
    few = [change.arm for change in changes if min(change.rounds) < FIRST_LOOK]
    if few:
        yield f"No change is named before {FIRST_LOOK} rounds in both runs: {', '.join(few)}."
    for run, other, name in ((old, new, names[0]), (new, old, names[1])):
        only = [arm.label for arm in run.config.arms if run.of(arm) and not other.of(arm)]
        if only:
            yield f"Only in {name}: {', '.join(only)}."
