"""The same training, or it is no comparison: what the ranks of a launch must have in common.

Three gates. The **ranks** must start from one model, train, and end bitwise alike. Twenty steps in
**float64**, in every launch, must end where a single process on the combined batch ends; so must, for
``compare verify``, twenty in **float32**. The limits leave rounding its room, and nothing else: right
strategies were found at 4e-16 and 3e-7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from compare.errors import ParityError
from compare.schema.job import PASSES, Proof
from compare.schema.results import Gate, PassKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compare.schema.arms import Arm
    from compare.schema.results import ParityPass, RankResult


LIMITS: dict[PassKind, float] = {"float64": 1e-12, "float32": 1e-6}
"""Relative difference from a single process that a pass may end with; of ``as run`` none is asked."""

_CLOSE = 0.01
"""Shares of an update that are nearer than this to a number with a meaning are taken for it."""

_ROUNDED = 0.05
"""How far from the right one the first update of an arm that rounds may be: fp16 is 3e-4 away, a sum over
two ranks 1, and PowerSGD does not compress its first steps."""
_AS_FAR_AS_UNTRAINED = 1.0
"""How far all steps together may take an arm that rounds or compresses from where they take a single
process, over the size of that: no farther than no training would be. Over models of 200 thousand to 6 million
parameters, after 5 steps and after 20, fp16 is up to 4e-4 away and PowerSGD of rank 1 0.7; with gradients
that are never set to nought both are 1.2 to 14. The largest relative difference tells these not apart."""


def judge(arm: Arm, ranks: list[RankResult], proof: Proof = "brief") -> list[Gate]:
    """Put the ranks of one launch through the gates: those of its proof, and then the ranks' own.

    The control is exempt from all but starting alike and training: its ranks train apart by declaration.
    """
    kinds = [kind for kind in PASSES[proof] if kind in LIMITS]
    return [*(_judge_pass(arm, ranks, kind) for kind in kinds), _judge_ranks(arm, ranks)]


def check_launch(arm: Arm, ranks: list[RankResult]) -> None:
    """Refuse a launch that does not pass every gate.

    Raises:
        ParityError: naming the ranks, what was found, and what that means where it can be told.
    """
    for gate in judge(arm, ranks):
        if gate.outcome == "failed":
            raise ParityError(gate.what, found=gate.found, remedy=gate.remedy)


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return a rank's pass of one kind, if it took one."""
    return next((taken for taken in rank.parity if taken.kind == kind), None)


def _judge_ranks(arm: Arm, ranks: list[RankResult]) -> Gate:
    if len({r.initial_hash for r in ranks}) > 1:
        return _apart(f"{arm.label}: the ranks did not start from one model.", _hashes(ranks, "initial_hash"))
    for result in ranks:
        if result.final_hash == result.initial_hash:
            return Gate(
                name="ranks",
                outcome="failed",
                what=f"{arm.label}: rank {result.rank} on {result.host} never trained.",
                found="Its parameters at the end are bitwise those of the start.",
                remedy="The strategy's step does not reach the parameters; this launch proves nothing.",
            )
    if not arm.synchronises:
        return Gate(name="ranks", outcome="exempt")
    if len({r.final_hash for r in ranks}) > 1:
        return _apart(f"{arm.label}: the ranks ended with different models.", _hashes(ranks, "final_hash"))
    return Gate(name="ranks", outcome="passed")


def _apart(what: str, found: str) -> Gate:
    return Gate(
        name="ranks",
        outcome="failed",
        what=what,
        found=found,
        remedy="Gradients are not the mean over all ranks; the speed of this arm means nothing.",
    )


def _hashes(ranks: list[RankResult], name: str) -> str:
    each = ", ".join(f"rank {r.rank} {getattr(r, name)[:12]}" for r in ranks)
    return f"SHA-256 of the parameters: {each}."


def _judge_pass(arm: Arm, ranks: list[RankResult], kind: PassKind) -> Gate:
    name: Literal["float64", "float32"] = "float64" if kind == "float64" else "float32"
    if not arm.synchronises:
        return Gate(name=name, outcome="exempt")
    limit = LIMITS[kind]
    passes = {r.rank: taken for r in ranks if (taken := pass_of(r, kind))}
    if len(passes) < len(ranks):
        missing = next(r for r in ranks if r.rank not in passes)
        return Gate(
            name=name,
            outcome="failed",
            limit=limit,
            what=f"{arm.label}: rank {missing.rank} on {missing.host} brought no {kind} pass.",
            found="Without it nothing is known of what this arm trains.",
        )
    figure = passes[0].differences[-1]
    alike = len({taken.hash for taken in passes.values()}) == 1
    if not arm.exact and figure is not None and alike and _first_update_is_right(passes.values()):
        return _judge_end_of_lossy(arm, passes[0], name)
    if arm.exact and figure is not None and figure <= limit and alike:
        return Gate(name=name, outcome="passed", figure=figure, limit=limit)
    steps = passes[0].steps
    size = "no number" if figure is None else f"{figure:.1e}"
    allowed = f"{limit:g} is" if arm.exact else f"{_ROUNDED:g} of the first update's size is what rounding is"
    return Gate(
        name=name,
        outcome="failed",
        figure=figure,
        limit=limit,
        what=f"{arm.label} does not train what a single process trains on the same samples.",
        found=f"After {steps} {kind} steps rank 0 is {size} away from it, relatively; {allowed} allowed. "
        + explain(list(passes.items()), limit),
        remedy="Mend the strategy: the speed of this arm means nothing.",
    )


def _judge_end_of_lossy(arm: Arm, first: ParityPass, name: Literal["float64", "float32"]) -> Gate:
    """Judge an arm that rounds or compresses by its own choice, and whose first update is right.

    How far that takes it is stated, and judged by no more than whether it still is the same training.
    """
    figure, error = first.differences[-1], first.error_of_whole_update
    if _is_within(error, _AS_FAR_AS_UNTRAINED):
        return Gate(name=name, outcome="exempt", figure=figure)
    size = "no number" if error is None else f"{error:.2g} times its size"
    return Gate(
        name=name,
        outcome="failed",
        figure=figure,
        what=f"{arm.label} rounds or compresses, and ends farther off than that can take it.",
        found=f"After {first.steps} {name} steps the update of all of them together is {size} away from a "
        f"single process's; {_AS_FAR_AS_UNTRAINED:g} is allowed, which is where no training at all would be. "
        "The first update is right on every rank: something is left over from the step before, or what "
        "compression leaves out is lost.",
        remedy="Mend the strategy: the speed of this arm means nothing.",
    )


def _first_update_is_right(passes: Iterable[ParityPass]) -> bool:
    """Whether every rank's first update was the mean but for rounding: no sum, and of no other samples."""
    return all(_is_within(taken.error_of_first_update, _ROUNDED) for taken in passes)


def explain(passes: list[tuple[int, ParityPass]], limit: float) -> str:
    """Say what a failed pass looks like, from the ranks' first updates: one sentence.

    Args:
        passes: each with its rank.
        limit: the relative difference that is allowed.
    """
    wrong = [(rank, taken) for rank, taken in passes if not _is_within(taken.differences[0], limit)]
    if not wrong:
        return (
            "The first update is right on every rank, and later ones are not: something is left over from "
            "the step before."
        )
    if len(wrong) < len(passes):
        return f"{_named(wrong)}; that of the others is right: gradients do not reach every rank in full."
    meaning = _meaning_of([taken.share_of_first_update for _, taken in passes])
    if meaning:
        return meaning
    if len({taken.hash for _, taken in passes}) == 1:
        return (
            "The ranks agree with each other, on gradients of other samples: are their shards the parts of "
            "every global batch?"
        )
    return f"{_named(wrong)}: gradients are not averaged over the ranks."


def _meaning_of(shares: list[float | None]) -> str:
    """Say what it means that every rank made this much of the right update; nothing where that is unclear."""
    count = len(shares)

    def are(value: float) -> bool:
        return all(share is not None and abs(share - value) < _CLOSE for share in shares)

    if are(0):
        return "Nothing moves on any rank: the step does not reach the parameters."
    if count > 1 and are(count):
        return f"Every rank's first update is {count} times the right one: a sum in the place of the mean."
    if count > 1 and are(1 / count):
        return f"Every rank's first update is the right one divided by {count}: the mean is divided twice."
    return ""


def _is_within(difference: float | None, limit: float) -> bool:
    return difference is not None and difference <= limit


def _named(wrong: list[tuple[int, ParityPass]]) -> str:
    each = [
        f"rank {rank} (by {'no number' if off is None else f'{off:.1e}'})"
        for rank, off in ((rank, taken.differences[0]) for rank, taken in wrong)
    ]
    return f"The first update is wrong on {', '.join(each)}"
