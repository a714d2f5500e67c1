"""Name what may explain a difference between arms: causes of the sync cost, and conditions that differ.

A cause has measured evidence. It is named if an interval shows that it is beyond noise, and if it takes at
least ``LEAST_SHARE`` of a step. A sync cost below noise has no cause. Fewer than ``FEWEST_ROUNDS`` rounds
have no useful interval, so only oversubscription is named in such a run.

Conditions are compared over arms, ranks and rounds. Every value is what the ranks report about what
ran, never what was configured. An item that no rank attests is not compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from compare.analysis.attested import ABSENT, WHAT_IS_COMPARED, Item, Role, items_of, spell
from compare.analysis.budget import fullest_host
from compare.analysis.cost_model import split_collectives
from compare.analysis.figures import Estimate, Figures, LaunchFigures, t_interval
from compare.analysis.measured import schedule_of
from compare.analysis.summary import ArmSummary, Summary
from compare.errors import ConditionsError
from compare.schema.arms import Arm
from compare.schema.results import Launch, RankResult, Run
from compare.text import listed, numbered

Key = Literal[
    "oversubscription",
    "lone_rank",
    "little_compute",
    "latency",
    "bandwidth",
    "background",
    "straggler",
    "transport",
]

LEAST_SHARE = 0.05
"""A cause takes at least this share of a step; a straggler's excess, of the time that a step computes."""
DOMINANT_SHARE = 2 / 3
"""One of two parts dominates from this share on, because it is then twice the other."""
FEWEST_ROUNDS = 3
"""An arm with fewer launches gets no cause, because the range of two values often misses the true mean."""
ALPHA = 0.05
"""A straggler is named with at most this probability if all ranks are equally fast."""
_HALF = 0.5
Kind: TypeAlias = Literal["same", "declared", "different"]
"""Result of comparing one item; ``declared``: it differs because an option or the backend says so."""
_ROLES_IN_ORDER = ("controlled", "confounder", "compared")


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a sync cost, with the arm that has it and the evidence."""

    key: Key
    arm: str
    """Label of the arm; empty for a cause of the whole run."""
    evidence: dict[str, Any]
    """Figures and names that show it, by key; keys that end in ``_seconds`` are seconds per step."""


_KeyWithEvidence: TypeAlias = tuple[Key, dict[str, Any]]
"""The key of a cause and its evidence, as in `Cause`."""


def find_causes(figures: Figures, summary: Summary) -> list[Cause]:
    """Return the causes of every arm's sync cost, arm by arm; those that lie in the transport come last.

    If threads outnumber the cores, that is the only cause, because ranks that wait for a core would look like
    any other cause. If noise hides every difference, no cause is named, because noise may explain all.
    """
    run = figures.run
    if summary.oversubscribed:
        ranks, cores = fullest_host(run)
        evidence = {"ranks": ranks, "threads_per_rank": run.config.threads_per_rank, "cores": cores}
        return [Cause(key="oversubscription", arm="", evidence=evidence)]
    if summary.noise_hides_all:
        return []
    labels = {arm.label for arm in run.config.synchronising}
    arms = [arm for arm in summary.arms if arm.arm in labels]
    causes = [
        Cause(key=key, arm=arm.arm, evidence=evidence)
        for arm in arms
        for key, evidence in _causes_of_arm(figures.common, arm)
    ]
    return [*causes, *(_transport_causes(arms) if len(run.hosts) == 1 else ())]


def _causes_of_arm(figures: Figures, arm: ArmSummary) -> Iterator[_KeyWithEvidence]:
    if arm.below_noise:
        return
    launches, detail = figures.of(arm.arm), arm.detail
    if _has_sync_cost(arm):
        if figures.run.config.ranks > 1:
            yield from _little_compute(launches)
            yield from _latency_or_bandwidth(launches, arm)
        elif detail.exposed_seconds:
            yield "lone_rank", {"exposed_seconds": detail.exposed_seconds.mean}
    background, reference = detail.background_seconds, detail.reference_seconds
    if background and reference and _is_significant(background, arm.step_seconds.mean):
        yield "background", {"background_seconds": background.mean, "reference_seconds": reference.mean}
    yield from _straggler(launches)


def _is_significant(cost: Estimate | None, step_seconds: float) -> bool:
    """Return whether a cost in seconds is beyond noise, and at least ``LEAST_SHARE`` of a step."""
    if cost is None or cost.n < FEWEST_ROUNDS:
        return False
    return cost.low > 0 and cost.mean >= LEAST_SHARE * step_seconds


def _has_sync_cost(arm: ArmSummary) -> bool:
    step, costs = arm.step_seconds.mean, (arm.detail.exposed_seconds, arm.sync_seconds)
    return not arm.below_noise and any(_is_significant(cost, step) for cost in costs)


def _little_compute(launches: Sequence[LaunchFigures]) -> Iterator[_KeyWithEvidence]:
    """Yield a cause if the arm's collectives, timed without training, take longer than a step computes.

    Not even perfect overlap could hide such collectives.
    """
    pairs = [
        (launch.collective_seconds, launch.reference_seconds)
        for launch in launches
        if launch.collective_seconds and launch.reference_seconds
    ]
    if len(pairs) < FEWEST_ROUNDS:
        return
    if Estimate.geometric(collective / compute for collective, compute in pairs).low > 1:
        collective, compute = (statistics.geometric_mean(seconds) for seconds in zip(*pairs, strict=True))
        overlaps = schedule_of(launches[0].ranks[0]) != "after"
        yield (
            "little_compute",
            {"compute_seconds": compute, "collective_seconds": collective, "overlaps": overlaps},
        )


def _latency_or_bandwidth(launches: Sequence[LaunchFigures], arm: ArmSummary) -> Iterator[_KeyWithEvidence]:
    """Yield latency or bandwidth as a cause, if it takes most of the collectives' time."""
    parts = [parts for launch in launches if (parts := split_collectives(launch))]
    if len(parts) < FEWEST_ROUNDS:
        return
    share = Estimate.of(part.latency / part.seconds for part in parts)
    if share.mean >= DOMINANT_SHARE and share.low > _HALF:
        key: Key = "latency"
    elif share.mean <= 1 - DOMINANT_SHARE and share.high < _HALF:
        key = "bandwidth"
    else:
        return
    seconds = statistics.geometric_mean(part.seconds for part in parts)
    fixed = share.mean * seconds
    if seconds < LEAST_SHARE * arm.step_seconds.mean:
        return
    evidence = {
        "calls": len(arm.detail.message_bytes),
        "message_bytes": sum(arm.detail.message_bytes),
        "transport": arm.transport,
        "collective_seconds": seconds,
        "fixed_seconds": fixed,
        "growing_seconds": seconds - fixed,
    }
    yield key, evidence


def _straggler(launches: Sequence[LaunchFigures]) -> Iterator[_KeyWithEvidence]:
    """Yield a cause if one rank computes longer than the others in every launch.

    Noise can make any rank the slowest of a launch, and the largest of several times is above their mean.
    So the rank must be the same in every launch. ``ALPHA`` is divided by the number of ranks (Bonferroni).
    """
    timed = [launch for launch in launches if launch.reference_seconds]
    times = [launch.rank_seconds("reference") for launch in timed]
    slowest = {ranks.index(max(ranks)) for ranks in times}
    if len(times) < FEWEST_ROUNDS or len(slowest) > 1:
        return
    rank = slowest.pop()
    excess = [ranks[rank] - statistics.fmean(ranks) for ranks in times]
    compute = statistics.fmean(statistics.fmean(ranks) for ranks in times)
    if t_interval(excess, ALPHA / len(times[0]))[0] > 0 and statistics.fmean(excess) >= LEAST_SHARE * compute:
        evidence = {
            "rank": rank,
            "host": timed[-1].ranks[rank].host,
            "excess_seconds": statistics.fmean(excess),
            "compute_seconds": statistics.fmean(ranks[rank] for ranks in times),
        }
        yield "straggler", evidence


def _transport_causes(arms: Sequence[ArmSummary]) -> Iterator[Cause]:
    """Yield a cause for each arm that uses TCP on one host while another arm uses shared memory.

    The other arm must have more bandwidth and a shorter step, because otherwise the transport explains no
    cost.
    """
    known = [
        (arm, bandwidth)
        for arm in arms
        if (bandwidth := arm.detail.algorithm_bandwidth) and bandwidth.n >= FEWEST_ROUNDS
    ]
    sharing = [pair for pair in known if pair[0].transport == "shared memory"]
    if not sharing:
        return
    other, other_bandwidth = max(sharing, key=lambda pair: pair[1].mean)
    for arm, bandwidth in known:
        step, collectives = arm.step_seconds.mean, arm.detail.collective_seconds
        is_slower = bandwidth.high < other_bandwidth.low and step > other.step_seconds.mean
        is_large = collectives is not None and collectives.mean >= LEAST_SHARE * step
        if "TCP over lo" in arm.transport and is_slower and is_large and _has_sync_cost(arm):
            evidence = {
                "transport": arm.transport,
                "algorithm_bandwidth": bandwidth.mean,
                "other_arm": other.arm,
                "other_transport": other.transport,
                "other_algorithm_bandwidth": other_bandwidth.mean,
            }
            yield Cause(key="transport", arm=arm.arm, evidence=evidence)


# ---- conditions ----


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing one item over the whole run."""

    item: str
    role: Role
    kind: Kind
    values: dict[str, str]
    """Attested value of each arm as text, by label; ranks or rounds are listed where they differ."""
    why: str
    """Why the arms differ or what that means, or why nothing was compared, as a phrase; else empty."""
    by_library: bool = False
    """Whether arms differ in the item because of their backends and not because of options."""


class _ArmValues(NamedTuple):
    """What the ranks of one arm attest of one item, as text."""

    arm: Arm
    text: str
    """All values on one line; ranks or rounds are listed where they differ."""
    is_uneven: bool
    """Whether values differ between rounds, or between ranks that must agree."""
    first: list[str]
    """One value of the first round for each group of ranks that must agree.

    A group is all ranks, the ranks of one host (for an item with ``by_host``), or a single rank
    (``by_rank``). So arms with different numbers of ranks can be compared.
    """


def compare_conditions(run: Run) -> list[Condition]:
    """Compare every item that any rank attests, in the order controlled, confounder, compared."""
    arms = [(arm, launches) for arm in run.config.arms if (launches := run.of(arm))]
    conditions = [condition for item in items_of(run) if (condition := _compare(arms, item))]
    return sorted(conditions, key=lambda condition: _ROLES_IN_ORDER.index(condition.role))


def _compare(arms: Sequence[tuple[Arm, list[Launch]]], item: Item) -> Condition | None:
    compared = [pair for pair in arms if item.in_control or pair[0].traits.communicates]
    seen = [_values_of_arm(arm, launches, item) for arm, launches in compared]
    values = {arm.label: ABSENT for arm, _ in arms} | {one.arm.label: one.text for one in seen}
    if all(one.text == ABSENT for one in seen):
        if not item.from_shell:
            return None
        why = "no arm of this run reads it"
        return Condition(item=item.name, role=item.role, kind="same", values=values, why=why)
    kind, why = _classify(seen, item)
    exempt = {one.arm.label: by for one in seen for applies, by in item.exempt if applies(one.arm)}
    if kind == "different" and exempt:
        kind, why = _classify([one for one in seen if one.arm.label not in exempt], item)
        if kind == "same":
            declared = (f"{label} differs by declaration: {by}" for label, by in exempt.items())
            kind, why = "declared", "; ".join(declared)
    by_library = kind == "declared" and _is_by_library(seen, item)
    return Condition(item=item.name, role=item.role, kind=kind, values=values, why=why, by_library=by_library)


def _values_of_arm(arm: Arm, launches: list[Launch], item: Item) -> _ArmValues:
    rounds = [list(_spell_each(map(item.read, launch.ranks))) for launch in launches]
    values, ranks = rounds[0], launches[0].ranks
    groups = [rank.host if item.by_host else rank.rank if item.by_rank else "" for rank in ranks]
    first = dict(zip(groups, values, strict=True))
    text, is_uneven = _spell_ranks(values), [first[group] for group in groups] != values
    if any(of_round != values for of_round in rounds):
        pairs = zip(launches, rounds, strict=True)
        text = "; ".join(f"round {launch.round}: {_spell_ranks(of_round)}" for launch, of_round in pairs)
        is_uneven = True
    return _ArmValues(arm, text, is_uneven, list(first.values()))


def _spell_each(values: Iterable[Any]) -> Iterator[str]:
    """Yield each value as text, which is written anew only if a value differs from the one before it."""
    before, text = None, ABSENT
    for value in values:
        if value is not before and (type(value) is not type(before) or value != before):
            before, text = value, spell(value)
        yield text


def _classify(seen: Sequence[_ArmValues], item: Item) -> tuple[Kind, str]:
    uneven = [one.arm.label for one in seen if one.is_uneven]
    if uneven:
        return "different", f"ranks or rounds of {', '.join(uneven)} differ"
    if item.by_host:
        # An arm of one process runs only on the first host, so it agrees with any value on the others.
        most = max((one.first for one in seen), key=len, default=[])
        seen = [one._replace(first=[*one.first, *most[len(one.first) :]]) for one in seen]
    compared = [one.first for one in seen if not item.optional or set(one.first) != {ABSENT}]
    if all(first == compared[0] for first in compared):
        apart = [one.arm.label for one in seen if len(set(one.first)) > 1] if item.by_host else []
        return ("declared", f"hosts of {', '.join(apart)} differ: {item.by_host}") if apart else ("same", "")
    if item.role != "controlled":
        given = [name for name in item.options if any(name in one.arm.given for one in seen)]
        by_options = item.role == "compared" and given and not _is_by_library(seen, item)
        why = f"set by the option {', '.join(given)}: {WHAT_IS_COMPARED}"
        return "declared", why if by_options else item.why
    by_option = {one.arm.label: name for one in seen if (name := _declaring_option(one, item))}
    # Arms without such an option must agree, and must attest their option's default.
    undeclared = [one for one in seen if one.arm.label not in by_option]
    agree = all(one.first == undeclared[0].first for one in undeclared)
    if by_option and agree and not any(_contradicts(one, item) for one in undeclared):
        names = [name for name in item.options if name in by_option.values()]
        return "declared", f"set by the option {', '.join(names)}: {item.why}"
    return "different", item.why or "the arms did not run under the same conditions"


def _is_by_library(seen: Sequence[_ArmValues], item: Item) -> bool:
    """Return whether any two arms differ because of their backends and not because of options."""

    def has_option(values: _ArmValues) -> bool:
        return any(name in values.arm.given for name in item.options)

    known = [one for one in seen if not item.optional or set(one.first) != {ABSENT}]
    return item.by_library and any(
        one.first != other.first
        and (one.arm.backend != other.arm.backend or not (has_option(one) or has_option(other)))
        for one, other in combinations(known, 2)
    )


def _declaring_option(seen: _ArmValues, item: Item) -> str | None:
    """Return the arm's first given option whose value every rank attests; None if there is none."""
    given = seen.arm.given
    return next(
        (name for name in item.options if name in given and set(seen.first) == {spell(given[name])}), None
    )


def _contradicts(seen: _ArmValues, item: Item) -> bool:
    """Return whether a rank attests another value than the arm's options have, defaults included."""
    options = seen.arm.options
    expected = [spell(options[name]) for name in item.options if name in options]
    return bool(expected) and set(seen.first) != set(expected)


def _spell_ranks(ranks: list[str]) -> str:
    if len(set(ranks)) == 1:
        return ranks[0]
    ranks_of: dict[str, list[int]] = {}
    for rank, value in enumerate(ranks):
        ranks_of.setdefault(value, []).append(rank)
    return listed(f"{numbered('rank', those)}: {value}" for value, those in ranks_of.items())


def check_interpreter(run: Run, arm: Arm, ranks: Sequence[RankResult], *, here: str) -> None:
    """Require that the ranks of a gate ran in the Python environment of their arm.

    Runs other than gates always pass. ``here`` is the ``sys.prefix`` of this process, which an arm without an
    interpreter of its own must have.

    Raises:
        ConditionsError: a rank attests another environment or other sources than its arm asks for.
    """
    if run.config.slower_limit is None:
        return
    other = arm.against
    expected = {"prefix": other.prefix, "sources": other.sources} if other else {"prefix": here}
    for rank in ranks:
        for name, value in expected.items():
            attested = rank.attestation.get(name)
            if attested != value:
                raise ConditionsError(
                    f"{arm.label}: rank {rank.rank} did not run in its arm's environment.",
                    found=f"Its {'environment' if name == 'prefix' else 'copy of Ringside'} is {attested}, "
                    f"but the arm asks for {value}.",
                    remedy="Install torch and its launchers in that environment itself.",
                )
