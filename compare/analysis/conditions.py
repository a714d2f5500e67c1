"""Compare the conditions under which the arms ran, over arms, ranks and rounds.

Every value is what the ranks attest, never what was configured. An item that no rank attests is not compared.
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


class _Seen(NamedTuple):
    """What the ranks of one arm attest of one item, as text."""

    arm: Arm
    text: str
    """All values on one line; ranks or rounds are listed where they differ."""
    is_uneven: bool
    """Whether rounds differ, or ranks that must agree."""
    first: list[str]
    """One value of the first round for each group of ranks that must agree.

    The group is all ranks, the ranks of a host (``by_host``), or a single rank (``by_rank``). So arms with
    different numbers of ranks can be compared.
    """


def compare_conditions(run: Run) -> list[Condition]:
    """Compare every item that any rank attests, in the order controlled, confounder, compared."""
    arms = [(arm, launches) for arm in run.config.arms if (launches := run.of(arm))]
    found = [condition for item in items_of(run) if (condition := _compare(arms, item))]
    return sorted(found, key=lambda condition: _ORDER.index(condition.role))


def _compare(arms: Sequence[tuple[Arm, list[Launch]]], item: Item) -> Condition | None:
    asked = [pair for pair in arms if item.in_control or pair[0].traits.communicates]
    seen = [_see(arm, launches, item) for arm, launches in asked]
    values = {arm.label: ABSENT for arm, _ in arms} | {own.arm.label: own.text for own in seen}
    if all(own.text == ABSENT for own in seen):
        if not item.from_shell:
            return None
        why = "no arm of this run reads it"
        return Condition(item=item.name, role=item.role, kind="same", values=values, why=why)
    kind, why = _classify(seen, item)
    exempt = {own.arm.label: by for own in seen for holds, by in item.exempt if holds(own.arm)}
    if kind == "different" and exempt:
        kind, why = _classify([own for own in seen if own.arm.label not in exempt], item)
        if kind == "same":
            declared = (f"{label} differs by declaration: {by}" for label, by in exempt.items())
            kind, why = "declared", "; ".join(declared)
    by_library = kind == "declared" and _is_by_library(seen, item)
    return Condition(item=item.name, role=item.role, kind=kind, values=values, why=why, by_library=by_library)


def _see(arm: Arm, launches: list[Launch], item: Item) -> _Seen:
    rounds = [[spell(item.read(rank)) for rank in launch.ranks] for launch in launches]
    values, ranks = rounds[0], launches[0].ranks
    groups = [rank.host if item.by_host else rank.rank if item.by_rank else "" for rank in ranks]
    first = dict(zip(groups, values, strict=True))
    text, is_uneven = _spell_ranks(values), [first[group] for group in groups] != values
    if any(own != values for own in rounds):
        pairs = zip(launches, rounds, strict=True)
        text = "; ".join(f"round {launch.round}: {_spell_ranks(own)}" for launch, own in pairs)
        is_uneven = True
    return _Seen(arm, text, is_uneven, list(first.values()))


def _classify(seen: Sequence[_Seen], item: Item) -> tuple[Kind, str]:
    uneven = [own.arm.label for own in seen if own.is_uneven]
    if uneven:
        return "different", f"ranks or rounds of {', '.join(uneven)} differ"
    if item.by_host:
        # An arm of one process runs only on the first host, so it agrees with any value on the others.
        most = max((own.first for own in seen), key=len, default=[])
        seen = [own._replace(first=[*own.first, *most[len(own.first) :]]) for own in seen]
    compared = [own.first for own in seen if not item.optional or set(own.first) != {ABSENT}]
    if all(first == compared[0] for first in compared):
        apart = [own.arm.label for own in seen if len(set(own.first)) > 1] if item.by_host else []
        return ("declared", f"hosts of {', '.join(apart)} differ: {item.by_host}") if apart else ("same", "")
    if item.role != "controlled":
        given = [name for name in item.options if any(name in own.arm.given for own in seen)]
        by_options = item.role == "compared" and given and not _is_by_library(seen, item)
        why = f"set by the option {', '.join(given)}: {WHAT_IS_COMPARED}"
        return "declared", why if by_options else item.why
    by_option = {own.arm.label: name for own in seen if (name := _declaring(own, item))}
    # Arms without such an option must agree, and must attest their option's default.
    rest = [own for own in seen if own.arm.label not in by_option]
    agree = all(own.first == rest[0].first for own in rest)
    if by_option and agree and not any(_contradicts(own, item) for own in rest):
        names = [name for name in item.options if name in by_option.values()]
        return "declared", f"set by the option {', '.join(names)}: {item.why}"
    return "different", item.why or "the arms did not run under the same conditions"


def _is_by_library(seen: Sequence[_Seen], item: Item) -> bool:
    """Return whether any two arms differ because of their backends and not because of options."""

    def asked(own: _Seen) -> bool:
        return any(name in own.arm.given for name in item.options)

    known = [own for own in seen if not item.optional or set(own.first) != {ABSENT}]
    return item.by_library and any(
        one.first != other.first
        and (one.arm.backend != other.arm.backend or not (asked(one) or asked(other)))
        for one, other in combinations(known, 2)
    )


def _declaring(seen: _Seen, item: Item) -> str | None:
    """Return the first option of the arm whose value every rank attests; None without one."""
    given = seen.arm.given
    return next(
        (name for name in item.options if name in given and set(seen.first) == {spell(given[name])}), None
    )


def _contradicts(seen: _Seen, item: Item) -> bool:
    """Return whether a rank attests another value than the arm's options have, defaults included."""
    options = seen.arm.options
    asked = [spell(options[name]) for name in item.options if name in options]
    return bool(asked) and set(seen.first) != set(asked)


def _spell_ranks(ranks: list[str]) -> str:
    if len(set(ranks)) == 1:
        return ranks[0]
    return ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(ranks))


def check_interpreter(run: Run, arm: Arm, ranks: Sequence[RankResult], *, here: str) -> None:
    """Require that the ranks of a gate ran in the environment of their arm; other runs pass.

    ``here`` is the ``sys.prefix`` of this process.

    Raises:
        ConditionsError: a rank attests another environment or other sources than its arm asks for.
    """
    if run.config.slower_limit is None:
        return
    other = arm.against
    asked_of = {"prefix": other.prefix, "sources": other.sources} if other else {"prefix": here}
    for rank in ranks:
        for name, asked in asked_of.items():
            found = rank.attestation.get(name)
            if found != asked:
                raise ConditionsError(
                    f"{arm.label}: rank {rank.rank} did not run in its arm's environment.",
                    found=f"Its {name} is {found}, but the arm asks for {asked}.",
                    remedy="Install torch and its launchers in that environment itself.",
                )
