"""Compare the conditions under which the arms ran, over arms, ranks and rounds.

Every value is what the ranks attest from their running libraries, never what was configured. An item that no
rank attests is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from compare.analysis.attested import ABSENT, WHAT_IS_COMPARED, Item, Role, items_of, spell
from compare.errors import ConditionsError
from compare.schema.arms import Arm
from compare.schema.results import Launch, RankResult, Run

Kind: TypeAlias = Literal["same", "declared", "different"]
"""Result of comparing one item; ``declared``: it differs because an option or the backend says so."""
_ORDER = ("controlled", "confounder", "compared")


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
    return sorted(conditions, key=lambda condition: _ORDER.index(condition.role))


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
    rounds = [[spell(item.read(rank)) for rank in launch.ranks] for launch in launches]
    values, ranks = rounds[0], launches[0].ranks
    groups = [rank.host if item.by_host else rank.rank if item.by_rank else "" for rank in ranks]
    first = dict(zip(groups, values, strict=True))
    text, is_uneven = _spell_ranks(values), [first[group] for group in groups] != values
    if any(of_round != values for of_round in rounds):
        pairs = zip(launches, rounds, strict=True)
        text = "; ".join(f"round {launch.round}: {_spell_ranks(of_round)}" for launch, of_round in pairs)
        is_uneven = True
    return _ArmValues(arm, text, is_uneven, list(first.values()))


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
    return ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(ranks))


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
