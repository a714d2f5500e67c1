"""What could make arms unlike, compared over arms, ranks and rounds. Pure, like ``stats.py``.

Every item is read from what the ranks attest, never from what was asked for. Three roles:

- a **condition** must be the same everywhere, or the comparison is of something else;
- what is **compared** differs because the arms do: that is what they were named for;
- a **confounder** comes with a backend and cannot be taken from it, but is not what one meant to compare.

An item that no rank attests is not compared, and is not in the answer.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from compare.analysis.attested import OF_HOST, WHAT_IS_COMPARED, items_of

if TYPE_CHECKING:
    from compare.analysis.attested import Item, Role
    from compare.schema.arms import Arm
    from compare.schema.results import Launch, Run

ABSENT = "–"
"""Stands for what an arm does not have."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One item, over the whole run."""

    item: str
    role: Role
    kind: Literal["same", "declared", "different"]
    """``declared``: unlike, and the arms' own options or their backends say so."""
    values: dict[str, str]
    """What each arm attests, by its label; where its ranks or rounds differ, each of them."""
    why: str
    """What explains it, or what it does to the comparison; empty where there is nothing to explain."""
    by_library: bool = False
    """Unlike between arms by what their backends do of themselves: no option of the user's asked for it."""


def compare_conditions(run: Run) -> list[Condition]:
    """Compare the arms of a run, item by item.

    Returns:
        A finding for every item that any rank attests, the conditions first.
    """
    arms = [arm for arm in run.config.arms if run.of(arm)]
    found = [_judge(run, arms, item) for item in items_of(run)]
    order = {"condition": 0, "confounder": 1, "compared": 2}
    kept = [finding for finding in found if finding is not None]
    return sorted(kept, key=lambda finding: order[finding.role])


# ---- judging ----


def _judge(run: Run, arms: list[Arm], item: Item) -> Condition | None:
    asked = [arm for arm in arms if item.of_control or arm.synchronises]
    seen = {arm.label: [_per_rank(launch, item) for launch in run.of(arm)] for arm in asked}
    if all(value == ABSENT for rounds in seen.values() for ranks in rounds for value in ranks):
        return _unread(arms, item) if item.of_shell else None
    values = {arm.label: _describe(run.of(arm), seen[arm.label]) if arm in asked else ABSENT for arm in arms}
    hosts = {arm.label: [rank.host for rank in run.of(arm)[0].ranks] for arm in asked}
    kind, why = _classify(asked, seen, hosts, item)
    own = kind == "declared" and _is_own_way(asked, seen, item)
    return Condition(item=item.name, role=item.role, kind=kind, values=values, why=why, by_library=own)


def _unread(arms: list[Arm], item: Item) -> Condition:
    values = {arm.label: ABSENT for arm in arms}
    return Condition(
        item=item.name, role=item.role, kind="same", values=values, why="no arm of this run reads it"
    )


def _per_rank(launch: Launch, item: Item) -> list[str]:
    return [_spell(item.read(rank)) for rank in launch.ranks]


def _classify(
    arms: list[Arm], seen: dict[str, list[list[str]]], hosts: dict[str, list[str]], item: Item
) -> tuple[Literal["same", "declared", "different"], str]:
    uneven = [arm.label for arm in arms if _differs_within(seen[arm.label], hosts[arm.label], item)]
    if uneven:
        return "different", f"ranks or rounds of {', '.join(uneven)} differ among themselves"
    first = {arm.label: seen[arm.label][0] for arm in arms}
    compared = [ranks for ranks in first.values() if not item.of_some or set(ranks) != {ABSENT}]
    if all(ranks == compared[0] for ranks in compared):
        apart = [arm.label for arm in arms if len(set(first[arm.label])) > 1] if item.of_host else []
        return ("declared", f"hosts of {', '.join(apart)} differ: {OF_HOST}") if apart else ("same", "")
    if item.role != "condition":
        return "declared", _why_compared(arms, seen, item)
    by_option = {arm.label: name for arm in arms if (name := _declaring(arm, first[arm.label], item))}
    # What no option explains must still agree, and be what those arms were asked for by default.
    rest = [arm for arm in arms if arm.label not in by_option]
    agree = all(first[arm.label] == first[rest[0].label] for arm in rest)
    if by_option and agree and not any(_astray(arm, first[arm.label], item) for arm in rest):
        names = [name for name in item.options if name in by_option.values()]
        return "declared", f"by the arms' option {', '.join(names)}: {item.why}"
    return "different", item.why or "the arms did not run under the same conditions"


def _why_compared(arms: list[Arm], seen: dict[str, list[list[str]]], item: Item) -> str:
    """Name the options that ask for what is compared, where nothing but them makes arms unlike."""
    given = [name for name in item.options if any(name in arm.given for arm in arms)]
    if item.role != "compared" or not given or _is_own_way(arms, seen, item):
        return item.why
    return f"by the arms' option {', '.join(given)}: {WHAT_IS_COMPARED}"


def _is_own_way(arms: list[Arm], seen: dict[str, list[list[str]]], item: Item) -> bool:
    """Whether two arms are unlike that are of different backends, or neither of which asked for it."""

    def asked(arm: Arm) -> bool:
        return any(name in arm.given for name in item.options)

    first = {arm.label: seen[arm.label][0] for arm in arms}
    known = [arm for arm in arms if not item.of_some or set(first[arm.label]) != {ABSENT}]
    return item.of_nature and any(
        first[one.label] != first[other.label]
        and (one.backend != other.backend or not (asked(one) or asked(other)))
        for one, other in combinations(known, 2)
    )


def _declaring(arm: Arm, ranks: list[str], item: Item) -> str | None:
    """Return the option that the arm was given for the item, if every rank attests the value asked for."""
    given = (name for name in item.options if name in arm.given)
    return next((name for name in given if set(ranks) == {_spell(arm.given[name])}), None)


def _astray(arm: Arm, ranks: list[str], item: Item) -> bool:
    """Whether a rank attests other than its backend's option says, given or by default."""
    asked = [_spell(arm.options[name]) for name in item.options if name in arm.options]
    return bool(asked) and set(ranks) != set(asked)


def _differs_within(rounds: list[list[str]], hosts: list[str], item: Item) -> bool:
    if any(ranks != rounds[0] for ranks in rounds):
        return True
    if item.of_host:
        on_hosts = set(zip(hosts, rounds[0], strict=True))
        return len(on_hosts) > len(set(hosts))
    return not item.of_rank and len(set(rounds[0])) > 1


# ---- saying it ----


def _spell(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_spell(held)}" for key, held in sorted(value.items())) or "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_spell, value)) or "none"
    return str(value)


def _describe(launches: list[Launch], rounds: list[list[str]]) -> str:
    """Say what the launches of one arm attest: once where all agree, by rank and round where they do not."""
    if all(ranks == rounds[0] for ranks in rounds):
        return _describe_ranks(rounds[0])
    said = (f"round {la.round}: {_describe_ranks(ranks)}" for la, ranks in zip(launches, rounds, strict=True))
    return "; ".join(said)


def _describe_ranks(ranks: list[str]) -> str:
    if len(set(ranks)) == 1:
        return ranks[0]
    return ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(ranks))
