"""Compare the conditions under which the arms ran, over arms, ranks and rounds.

Every value is what the ranks attest, never what was configured. An item that no rank attests is not compared.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Literal, TypeAlias

import msgspec

from compare.analysis.attested import (
    BY_ANOTHER_INTERPRETER,
    BY_ANOTHER_TRAINING,
    BY_LAYERS,
    BY_ONE_PROCESS,
    BY_OWN_STEP,
    WHAT_IS_COMPARED,
    Item,
    Role,
    items_of,
)
from compare.schema.arms import Arm
from compare.schema.results import Launch, Run

ABSENT = "–"
"""Text in place of a value that an arm does not have."""
Kind: TypeAlias = Literal["same", "declared", "different"]
"""Result of comparing one item; ``declared``: it differs, and an option or the backend says so."""
_ORDER = ("controlled", "confounder", "compared")


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing one item over the whole run."""

    item: str
    role: Role
    kind: Kind
    values: dict[str, str]
    """Attested value of each arm, by label; ranks or rounds are listed where they differ."""
    why: str
    """Reason for the difference, its effect, or why nothing was compared; else empty."""
    by_library: bool = False
    """Whether arms differ in it because of their backends and not because of options."""


def compare_conditions(run: Run) -> list[Condition]:
    """Compare every item that any rank attests, in the order controlled, confounder, compared."""
    arms = [arm for arm in run.config.arms if run.of(arm)]
    found = [condition for item in items_of(run) if (condition := _compare(run, arms, item))]
    return sorted(found, key=lambda condition: _ORDER.index(condition.role))


def _compare(run: Run, arms: list[Arm], item: Item) -> Condition | None:
    asked = [arm for arm in arms if item.in_control or arm.traits.communicates]
    seen = {
        arm.label: [[_spell(item.read(rank)) for rank in launch.ranks] for launch in run.of(arm)]
        for arm in asked
    }
    if all(value == ABSENT for rounds in seen.values() for ranks in rounds for value in ranks):
        if not item.from_shell:
            return None
        absent = {arm.label: ABSENT for arm in arms}
        why = "no arm of this run reads it"
        return Condition(item=item.name, role=item.role, kind="same", values=absent, why=why)
    values = {arm.label: _describe(run.of(arm), seen[arm.label]) if arm in asked else ABSENT for arm in arms}
    hosts = {arm.label: [rank.host for rank in run.of(arm)[0].ranks] for arm in asked}
    exempt = {arm.label: by for arm in asked if (by := _exempt_by(arm, item))}
    if item.by_interpreter and _is_one_value(seen):
        exempt = {}
    kind, why = _classify([arm for arm in asked if arm.label not in exempt], seen, hosts, item)
    if kind == "same" and exempt:
        kind, why = "declared", "; ".join(f"{label} differs {by}" for label, by in exempt.items())
    own = kind == "declared" and _is_by_library(asked, seen, hosts, item)
    return Condition(item=item.name, role=item.role, kind=kind, values=values, why=why, by_library=own)


def _is_one_value(seen: dict[str, list[list[str]]]) -> bool:
    return len({value for rounds in seen.values() for ranks in rounds for value in ranks}) == 1


def _exempt_by(arm: Arm, item: Item) -> str:
    """Return the declaration by which an arm may differ in the item; empty without one."""
    if item.by_interpreter and arm.against:
        return BY_ANOTHER_INTERPRETER
    if item.by_process and arm.traits.one_process:
        return BY_ONE_PROCESS
    if item.by_layers and arm.traits.in_layers:
        return BY_LAYERS
    if item.by_own_step and arm.traits.own_step:
        return BY_OWN_STEP
    return BY_ANOTHER_TRAINING if item.by_training and not arm.same_training else ""


def _classify(
    arms: list[Arm], seen: dict[str, list[list[str]]], hosts: dict[str, list[str]], item: Item
) -> tuple[Kind, str]:
    uneven = [arm.label for arm in arms if _differs_within(seen[arm.label], hosts[arm.label], item)]
    if uneven:
        return "different", f"ranks or rounds of {', '.join(uneven)} differ"
    first = {arm.label: _first_values(seen[arm.label], item, hosts[arm.label]) for arm in arms}
    if item.by_host:
        # An arm of one process runs only on the first host, so it agrees with any value on the others.
        most = max(first.values(), key=len, default=[])
        first = {label: [*values, *most[len(values) :]] for label, values in first.items()}
    compared = [ranks for ranks in first.values() if not item.optional or set(ranks) != {ABSENT}]
    if not compared or all(ranks == compared[0] for ranks in compared):
        apart = [arm.label for arm in arms if len(set(first[arm.label])) > 1] if item.by_host else []
        return ("declared", f"hosts of {', '.join(apart)} differ: {item.by_host}") if apart else ("same", "")
    if item.role != "controlled":
        return "declared", _why_compared(arms, seen, hosts, item)
    by_option = {arm.label: name for arm in arms if (name := _declaring(arm, first[arm.label], item))}
    # Arms without such an option must agree, and must attest their option's default.
    rest = [arm for arm in arms if arm.label not in by_option]
    agree = all(first[arm.label] == first[rest[0].label] for arm in rest)
    if by_option and agree and not any(_contradicts(arm, first[arm.label], item) for arm in rest):
        names = [name for name in item.options if name in by_option.values()]
        return "declared", f"set by the option {', '.join(names)}: {item.why}"
    return "different", item.why or "the arms did not run under the same conditions"


def _first_values(rounds: list[list[str]], item: Item, hosts: list[str]) -> list[str]:
    """Return one value of the first round for each group of ranks that must agree.

    The group is all ranks, the ranks of a host (``by_host``), or a single rank (``by_rank``). So arms with
    different numbers of ranks can be compared.
    """
    if item.by_host:
        return list(dict(zip(hosts, rounds[0], strict=True)).values())
    return rounds[0] if item.by_rank else rounds[0][:1]


def _why_compared(
    arms: list[Arm], seen: dict[str, list[list[str]]], hosts: dict[str, list[str]], item: Item
) -> str:
    """Name the options that cause a declared difference, or return the item's reason if others cause it."""
    given = [name for name in item.options if any(name in arm.given for arm in arms)]
    if item.role != "compared" or not given or _is_by_library(arms, seen, hosts, item):
        return item.why
    return f"set by the option {', '.join(given)}: {WHAT_IS_COMPARED}"


def _is_by_library(
    arms: list[Arm], seen: dict[str, list[list[str]]], hosts: dict[str, list[str]], item: Item
) -> bool:
    """Return whether any two arms differ because of their backends and not because of options."""

    def asked(arm: Arm) -> bool:
        return any(name in arm.given for name in item.options)

    first = {arm.label: _first_values(seen[arm.label], item, hosts[arm.label]) for arm in arms}
    known = [arm for arm in arms if not item.optional or set(first[arm.label]) != {ABSENT}]
    return item.by_library and any(
        first[one.label] != first[other.label]
        and (one.backend != other.backend or not (asked(one) or asked(other)))
        for one, other in combinations(known, 2)
    )


def _declaring(arm: Arm, ranks: list[str], item: Item) -> str | None:
    """Return the first option of the arm whose value every rank attests; None without one."""
    given = (name for name in item.options if name in arm.given)
    return next((name for name in given if set(ranks) == {_spell(arm.given[name])}), None)


def _contradicts(arm: Arm, ranks: list[str], item: Item) -> bool:
    """Return whether a rank attests another value than the arm's options have, defaults included."""
    asked = [_spell(arm.options[name]) for name in item.options if name in arm.options]
    return bool(asked) and set(ranks) != set(asked)


def _differs_within(rounds: list[list[str]], hosts: list[str], item: Item) -> bool:
    if any(ranks != rounds[0] for ranks in rounds):
        return True
    if item.by_host:
        on_hosts = set(zip(hosts, rounds[0], strict=True))
        return len(on_hosts) > len(set(hosts))
    return not item.by_rank and len(set(rounds[0])) > 1


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
    """Write the values of one arm on one line, round by round if its rounds differ."""
    if all(ranks == rounds[0] for ranks in rounds):
        return _describe_ranks(rounds[0])
    each = (f"round {la.round}: {_describe_ranks(ranks)}" for la, ranks in zip(launches, rounds, strict=True))
    return "; ".join(each)


def _describe_ranks(ranks: list[str]) -> str:
    if len(set(ranks)) == 1:
        return ranks[0]
    return ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(ranks))
