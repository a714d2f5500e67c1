"""Check parity: do the ranks train what a single process trains?

Three gates:

- ``ranks``: all ranks start from one model, train, and end with the same parameters, bit for bit
- ``float64``: each of twenty steps ends where that of a single process ends; in every launch
- ``float32``: likewise; for ``compare verify``

The limits leave room for rounding alone. Right strategies were found at 4e-16 and 3e-7.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from compare.errors import ParityError
from compare.schema.arms import Arm
from compare.schema.job import PASSES, Proof
from compare.schema.results import Gate, ParityPass, PassKind, RankResult

LIMITS: dict[PassKind, float] = {"float64": 1e-12, "float32": 1e-6}
"""Largest relative difference from a single process; ``as run`` has no limit."""
IN_SHARDS = "held in shards; proven by the reference alone"
"""Reason why the hashes of an arm's ranks may differ."""
ANOTHER_TRAINING = "another training by declaration"
"""Reason why an arm need not train what a single process trains."""
AT_PERIOD_1 = "the same training at period 1"
"""What is proven of an arm that averages less often."""
_WORTHLESS = "the speed of this arm means nothing."
_WRONG_SHARD = "A shard is not updated, or samples are left out. Check every rank's part of the work."
_OTHER_SAMPLES = (
    "The ranks agree with each other, on gradients of other samples. Check that their shards are the parts "
    "of every global batch."
)
_Name: TypeAlias = Literal["ranks", "float64", "float32"]
_CLOSE = 0.01
"""Largest distance of an update's share from one with a meaning."""
_ROUNDED = 0.05
"""Largest error of the first update of an arm that rounds.

fp16 is 3e-4 away, a sum over two ranks 1. PowerSGD does not compress its first steps.
"""
_AS_FAR_AS_UNTRAINED = 1.0
"""Largest error of all updates of an arm that rounds or compresses.

It is relative to the single process's update, so 1 is no training at all. Models of 200 thousand to 6
million parameters trained 5 and 20 steps. fp16 was up to 4e-4 away and PowerSGD of rank 1 0.7. If gradients
were never reset, both were 1.2 to 14 away. The largest relative difference does not separate these cases.
"""


def check_gates(arm: Arm, ranks: list[RankResult], proof: Proof = "brief") -> list[Gate]:
    """Check the ranks of one launch at every gate of its proof.

    The control must only start from one model and train: its ranks never synchronise.
    """
    kinds = [kind for kind in PASSES[proof] if kind in LIMITS]
    return [*(_check_pass(arm, ranks, kind) for kind in kinds), _check_ranks(arm, ranks)]


def check_launch(arm: Arm, ranks: list[RankResult]) -> None:
    """Refuse a launch that fails a gate.

    Raises:
        ParityError: a gate failed; it names the ranks, the difference, and its meaning if that is known.
    """
    for gate in check_gates(arm, ranks):
        if gate.outcome == "failed":
            raise ParityError(gate.what, found=gate.found, remedy=gate.remedy)


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return a rank's pass of one kind, if there is one."""
    return next((taken for taken in rank.parity if taken.kind == kind), None)


def _failed(name: _Name, what: str, found: str, reason: str, **figures: float | None) -> Gate:
    return Gate(
        name=name, outcome="failed", what=what, found=found, remedy=f"Fix the strategy: {reason}", **figures
    )


# ---- the ranks ----


def _check_ranks(arm: Arm, ranks: list[RankResult]) -> Gate:
    if len({r.initial_hash for r in ranks}) > 1:
        return _different(arm, ranks, "initial_hash")
    for result in ranks:
        if result.final_hash == result.initial_hash:
            what = f"{arm.label}: rank {result.rank} on {result.host} never trained."
            found = "Its parameters at the end are those of the start, bit for bit."
            return _failed("ranks", what, found, "its step does not change the parameters.")
    if not arm.synchronises:
        return Gate(name="ranks", outcome="exempt")
    if arm.in_shards and len(ranks) > 1:
        # Every rank gathers the same shards, so equal hashes are no evidence.
        return Gate(name="ranks", outcome="exempt", what=IN_SHARDS)
    if len({r.final_hash for r in ranks}) > 1:
        return _different(arm, ranks, "final_hash")
    return Gate(name="ranks", outcome="passed")


def _different(arm: Arm, ranks: list[RankResult], when: Literal["initial_hash", "final_hash"]) -> Gate:
    verb = "started from" if when == "initial_hash" else "ended with"
    each = ", ".join(f"rank {r.rank} {getattr(r, when)[:12]}" for r in ranks)
    return _failed(
        "ranks",
        f"{arm.label}: the ranks {verb} different models.",
        f"SHA-256 of the parameters: {each}.",
        "its gradients are not the mean over all ranks.",
    )


# ---- a pass beside a single process ----


def _check_pass(arm: Arm, ranks: list[RankResult], kind: PassKind) -> Gate:
    name: _Name = "float64" if kind == "float64" else "float32"
    if not arm.synchronises:
        return Gate(name=name, outcome="exempt")
    limit = LIMITS[kind]
    passes = {r.rank: taken for r in ranks if (taken := pass_of(r, kind))}
    if len(passes) < len(ranks):
        missing = next(r for r in ranks if r.rank not in passes)
        what = f"{arm.label}: rank {missing.rank} on {missing.host} has no {kind} pass."
        found = "Without it, the training of this arm is not proven."
        return _failed(name, what, found, "every rank must take the parity steps.", limit=limit)
    figure = _worst(passes[0].differences)
    if arm.another_training:
        return Gate(name=name, outcome="exempt", figure=figure, what=ANOTHER_TRAINING)
    same = len({taken.hash for taken in passes.values()}) == 1
    # Every first update was the mean, except for rounding.
    right_at_first = all(_is_within(taken.error_of_first_update, _ROUNDED) for taken in passes.values())
    if not arm.exact and figure is not None and same and right_at_first:
        return _check_end_of_lossy(arm, passes[0], name)
    if arm.exact and figure is not None and figure <= limit and same:
        steps = passes[0].steps
        what = "" if arm.same_training else AT_PERIOD_1
        if passes[0].diverged:
            what = f"Proven by {steps} steps: the single process diverges after them."
        return Gate(name=name, outcome="passed", figure=figure, limit=limit, what=what)
    allowed = f"{limit:g}" if arm.exact else f"{_ROUNDED:g} of the first update, for rounding"
    return _failed(
        name,
        f"{arm.label} does not train what a single process trains on the same samples.",
        f"Largest relative difference of rank 0 in {passes[0].steps} {kind} steps: {_size(figure)}. "
        f"Allowed: {allowed}. " + diagnose(list(passes.items()), limit, in_shards=arm.in_shards),
        _WORTHLESS,
        figure=figure,
        limit=limit,
    )


def _check_end_of_lossy(arm: Arm, first: ParityPass, name: _Name) -> Gate:
    """Check an arm that rounds or compresses after its first update.

    The first update is right. The difference is reported, and must only be smaller than without any training.
    """
    figure, error = _worst(first.differences), first.error_of_whole_update
    if _is_within(error, _AS_FAR_AS_UNTRAINED):
        return Gate(name=name, outcome="exempt", figure=figure)
    size = "no number" if error is None else f"{error:.2g} times the size of that update"
    return _failed(
        name,
        f"{arm.label}: rounding or compression cannot explain its difference from a single process.",
        f"Difference of the update after {first.steps} {name} steps: {size}. "
        f"Allowed: {_AS_FAR_AS_UNTRAINED:g}, the difference without any training. "
        "The first update is right on every rank. Either something is left over from the step before, or the "
        "compression error is lost.",
        _WORTHLESS,
        figure=figure,
    )


def diagnose(passes: list[tuple[int, ParityPass]], limit: float, *, in_shards: bool = False) -> str:
    """Describe what the first updates of a failed pass show.

    Each pass comes with its rank. ``limit`` is the relative difference that is allowed. Ranks ``in_shards``
    gather the same model, so their agreement shows nothing.
    """
    wrong = [(rank, taken) for rank, taken in passes if not _is_within(taken.differences[0], limit)]
    if not wrong and any(None in taken.differences for _, taken in passes):
        return (
            "The first update is right on every rank, and then the training diverges. SGD with a learning "
            "rate of 0.01 is too much for this model. Scale its inputs, its targets or its loss."
        )
    if not wrong:
        return (
            "The first update is right on every rank, and later ones are wrong. "
            "Something is left over from the step before."
        )
    if len(wrong) < len(passes):
        return f"{_named(wrong)}, and right on the others: gradients do not reach every rank in full."
    meaning = _meaning_of([taken.share_of_first_update for _, taken in passes])
    if meaning:
        return meaning
    if len({taken.hash for _, taken in passes}) == 1:
        return _WRONG_SHARD if in_shards else _OTHER_SAMPLES
    return f"{_named(wrong)}: gradients are not averaged over the ranks."


def _meaning_of(shares: list[float | None]) -> str:
    """Describe what the shares of the right update mean, if known."""
    count = len(shares)

    def are(value: float) -> bool:
        return all(share is not None and abs(share - value) < _CLOSE for share in shares)

    if are(0):
        return "No rank's parameters change: the step does not reach them."
    if count > 1 and are(count):
        return f"Every rank's first update is {count} times the right one: a sum in place of the mean."
    if count > 1 and are(1 / count):
        return f"Every rank's first update is the right one divided by {count}: the mean is divided twice."
    return ""


def _worst(differences: list[float | None]) -> float | None:
    """Return the largest; None if one is no number."""
    known = [difference for difference in differences if difference is not None]
    return max(known) if len(known) == len(differences) else None


def _is_within(difference: float | None, limit: float) -> bool:
    return difference is not None and difference <= limit


def _named(wrong: list[tuple[int, ParityPass]]) -> str:
    each = [f"rank {rank} (by {_size(taken.differences[0])})" for rank, taken in wrong]
    return f"The first update is wrong on {', '.join(each)}"


def _size(difference: float | None) -> str:
    return "no number" if difference is None else f"{difference:.1e}"
